//! Two transfers cannot read into one buffer at the same time.
use forebay_engine::{Buffer, File, Session};

fn main() {
    let session = Session::open().unwrap();
    let file = File::open("file").unwrap();
    let mut buffer: Buffer = session.host_buffer(4096).unwrap();
    let mut first = || session.read_into(&file, 0, &mut buffer, 0..1024);
    let mut second = || session.read_into(&file, 0, &mut buffer, 1024..2048);
    first().and(second()).unwrap();
}
