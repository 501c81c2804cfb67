//! Facts about a process from /proc.

/// Why no process can be found here, with what to type: /proc is not mounted, or something hides it.
pub fn hidden_processes() -> Option<(&'static str, &'static str)> {
    let shown = std::path::Path::new("/proc/self/status").exists();
    (!shown).then_some(("/proc does not show processes, not even this one", "mount -t proc proc /proc"))
}

/// When this process started, in clock ticks since boot.
pub(crate) fn started() -> Option<u64> {
    started_in(&std::fs::read_to_string("/proc/self/stat").ok()?)
}

/// Field 22. The second field is a name in parentheses that may hold anything.
fn started_in(stat: &str) -> Option<u64> {
    let after_name = &stat[stat.rfind(')')? + 1..];
    after_name.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// This process's command line.
pub(crate) fn program() -> String {
    let line = std::fs::read("/proc/self/cmdline").unwrap_or_default();
    let line = line.strip_suffix(&[0]).unwrap_or(&line);
    let text = String::from_utf8_lossy(line);
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// The process numbers that a process has, from here inwards: one for each nested namespace.
pub(crate) fn numbers(pid: u32) -> Vec<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let numbers: Vec<u64> =
        line.unwrap_or_default().split_ascii_whitespace().filter_map(|number| number.parse().ok()).collect();
    if numbers.is_empty() { vec![pid.into()] } else { numbers }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_is_found_behind_odd_names() {
        let rest = (3..=52).map(|n| n.to_string()).collect::<Vec<_>>().join(" ");
        assert_eq!(started_in(&format!("12 (a) b ) {rest}")), Some(22));
        assert_eq!(started_in("12"), None);
        assert!(started().is_some());
    }

    #[test]
    fn this_process_has_its_number() {
        assert!(numbers(std::process::id()).contains(&u64::from(std::process::id())));
    }
}
