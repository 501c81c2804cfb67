//! A slice of a buffer does not outlive a transfer into it.
use forebay_engine::{Buffer, File, Session};

fn main() {
    let session = Session::open().unwrap();
    let file = File::open("file").unwrap();
    let mut buffer: Buffer = session.host_buffer(4096).unwrap();
    let before = buffer.as_slice();
    session.read(&file, 0, &mut buffer).unwrap();
    println!("{before:?}");
}
