//! The steps of `examples/verbs_loop` over the double: what the lab's guests do over soft devices.

#[path = "../examples/verbs_loop/steps.rs"]
mod steps;

use fake_verbs::Fake;

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
    assert_eq!(lines.len(), 21);
}
