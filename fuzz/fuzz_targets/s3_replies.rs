//! Replies of servers of objects and the documents in them: a reply is the same in whichever pieces it comes.
#![no_main]

use forebay_objects::fuzz;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((choice, bytes)) = data.split_first() else { return };
    if *choice == 0 {
        fuzz::documents(bytes);
        return;
    }
    let whole = fuzz::reply(bytes, usize::MAX / 2);
    let pieces = fuzz::reply(bytes, usize::from(*choice));
    // A reply that breaks a rule behind its body's beginning is found out at another byte.
    if let (Some(whole), Some(pieces)) = (&whole, &pieces) {
        assert!(whole == pieces);
    }
    assert!(whole.is_some() == pieces.is_some());
    if let Some((_, body, _)) = whole {
        assert!(body.len() < bytes.len());
        fuzz::documents(&body);
    }
});
