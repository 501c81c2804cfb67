//! The steps of `examples/verbs_loop` over the double: what the lab's guests do over soft devices.

#[path = "../examples/verbs_loop/steps/mod.rs"]
mod steps;

use fake_verbs::{Fake, FakeDevice};
use forebay_verbs::Transport;

#[test]
fn every_step_over_the_double() {
    let mut lines = Vec::new();
    let fake = Fake::new();
    let done = steps::all(&fake, "10.0.0.1:0".parse().unwrap(), &mut |line| lines.push(line));
    assert!(done.is_ok(), "{done:?} behind {lines:#?}");
    let line = |name: &str| lines.iter().find_map(|line| line.strip_prefix(&format!("{name}: "))).unwrap();
    let refused = "is refused [RemoteAccess, Flushed]";
    for name in ["window invalidated", "deregistered", "rights", "other domain"] {
        assert!(line(name).contains(refused) && line(name).ends_with("unchanged"), "{}", line(name));
    }
    assert_eq!(line("bounds"), format!("a WRITE one byte beyond the region {refused}, 0 bytes of it placed"));
    assert_eq!(line("window bounds"), "a WRITE beyond them is refused [RemoteAccess], 16384 bytes unchanged");
    assert!(line("invalidated by message").starts_with("the message names the key"));
    assert_eq!(line("dma-buf"), "an RDMA WRITE into it, 65536 bytes compared");
    assert_eq!(lines.len(), 21 + 1 + 22 + 6);
    assert_eq!(line("paired"), "10.0.0.1, port 1, MTU 4096");
    assert_eq!(line("paired, dropped"), "the peer's WRITE fails [Unreachable], 8192 bytes unchanged");
    for name in ["sequence number too low", "sequence number too high", "wrong queue pair", "wrong GID"] {
        let said = line(&format!("paired, {name}"));
        assert_eq!(said, "a WRITE fails [Unreachable], 8192 bytes unchanged", "{name}");
    }
}

#[test]
fn iwarp_says_that_it_is_not_paired_in_band() {
    let mut lines = Vec::new();
    let mut device = FakeDevice::new("siw0", "10.0.0.1".parse().unwrap());
    device.transport = Transport::Iwarp;
    steps::all(&Fake::with(vec![device]), "10.0.0.1:0".parse().unwrap(), &mut |line| lines.push(line))
        .unwrap();
    let last = lines.last().unwrap();
    assert!(last.starts_with("paired: cannot pair in band: ") && last.contains("iWARP"), "{last}");
}
