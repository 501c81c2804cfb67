//! A buffer goes to one ticket at a time.
use forebay_engine::{Buffer, File, Session};

fn main() {
    let session = Session::open().unwrap();
    let file = File::open("file").unwrap();
    let buffer: Buffer = session.host_buffer(4096).unwrap();
    let first = session.submit_read(&file, 0, buffer).unwrap();
    let second = session.read_batch(&file, &[], buffer).unwrap();
    first.wait();
    second.wait();
}
