//! Whatever a server sends, no more bytes are said to have moved than were asked for, and handles and limits are sane.
#![no_main]

use forebay_nfs::io_call::{IoCall, IoOperation, IoReply};
use forebay_nfs::handle::{CallLimits, NfsVersion};
use forebay_nfs::v4::{self, SequenceSlot};
use forebay_nfs::xdr::XdrReader;
use forebay_nfs::read_dir::{self, DirPlace, ReadDirForm};
use forebay_nfs::{new_file, rdma, rpc, v3};
use libfuzzer_sys::fuzz_target;

const COUNT: u32 = 4096;

fn sane(limits: CallLimits) {
    for limit in [limits.read, limits.write] {
        assert!((512..=CallLimits::MAX_BYTES).contains(&limit));
    }
}

fn names(bytes: &[u8], form: ReadDirForm) {
    let asked = DirPlace { cookie: 7, ..DirPlace::default() };
    if let Ok(Ok(part)) = read_dir::get(&mut XdrReader::new(bytes), form, asked) {
        assert!(part.is_last || part.next.cookie != asked.cookie);
        for entry in part.entries {
            assert!((1..=255).contains(&entry.name.len()) && !entry.name.contains(&b'/') && !entry.name.contains(&0));
            assert!(entry.name != b"." && entry.name != b"..");
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((choice, bytes)) = data.split_first() else { return };
    let from = || XdrReader::new(bytes);
    match choice % 8 {
        0..=3 => {
            let version = [NfsVersion::V3, NfsVersion::V4(0), NfsVersion::V4(1), NfsVersion::V3][usize::from(choice % 4)];
            let place = (version == NfsVersion::V4(1)).then(SequenceSlot::default);
            for operation in [IoOperation::Read, IoOperation::Write { durable: false }, IoOperation::Commit] {
                let io = IoCall { operation, offset: 0, count: COUNT, tells_state: true };
                let mut from = from();
                if let Ok(IoReply::Read { count, .. } | IoReply::Written { count, .. }) =
                    io.decode(&mut from, version, place.as_ref())
                {
                    assert!(count <= COUNT);
                }
                assert!(from.rest().len() <= bytes.len());
            }
        }
        4 => {
            let _ = rpc::reply_xid(&mut from());
            let _ = v3::get_port(&mut from());
            let _ = v3::get_mount(&mut from());
            let _ = v3::get_lookup(&mut from());
            let _ = new_file::get_access3(&mut from());
            let _ = new_file::get_rights3(&mut from());
            let _ = v3::get_attributes(&mut from());
            names(bytes, ReadDirForm::V3);
            names(bytes, ReadDirForm::V3Plus);
            if let Ok(Ok(limits)) = v3::get_limits(&mut from()) {
                sane(limits);
            }
        }
        5 => {
            let _ = v4::get_handle(&mut from());
            let _ = v4::get_exchange_id(&mut from());
            names(bytes, ReadDirForm::V4);
            let _ = v4::get_bind(&mut from(), &[0; 16]);
            let _ = new_file::get_open4(&mut from());
            let _ = new_file::get_client40(&mut from());
            let _ = new_file::get_confirm40(&mut from());
            let _ = new_file::get_access4(&mut from());
            let _ = new_file::get_heads(&mut from(), &[v4::op::PUTFH, new_file::op::SAVEFH]);
            if let Ok(Ok(rights)) = new_file::get_rights4(&mut from()) {
                assert!(rights.mode <= 0o777 && rights.owner.len() <= bytes.len());
            }
            if let Ok(Ok(granted)) = v4::get_create_session(&mut from()) {
                assert!(granted.slots > 0);
            }
        }
        6 => {
            let _ = IoCall::decode_behind(bytes, 1);
            if let Ok(Ok((_, limits))) = v4::get_attributes(&mut from()) {
                sane(limits);
            }
        }
        _ => {
            let mut from = from();
            if rdma::reply(&mut from).is_ok() {
                assert!(from.rest().len() < bytes.len());
            }
        }
    }
});
