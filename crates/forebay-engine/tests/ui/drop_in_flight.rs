//! A buffer cannot be freed while a ticket has it.
use forebay_engine::{Buffer, File, Session};

fn main() {
    let session = Session::open().unwrap();
    let file = File::open("file").unwrap();
    let buffer: Buffer = session.host_buffer(4096).unwrap();
    let ticket = session.submit_read(&file, 0, buffer).unwrap();
    drop(buffer);
    ticket.wait();
}
