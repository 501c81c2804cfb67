//! Fixes that change a file: which line, and the command that changes it.

use forebay_error::quoted;

use crate::system::System;

/// The number of the first line that fits, from 1.
pub(super) fn line_of(text: &str, fits: impl Fn(&str) -> bool) -> Option<usize> {
    text.lines().position(fits).map(|index| index + 1)
}

/// Adds lines to the section `[nfsd]` of /etc/nfs.conf, which may have none.
pub(super) fn nfs_conf(system: &dyn System, lines: &str) -> String {
    const CONF: &str = "/etc/nfs.conf";
    let text = system.whole_text(CONF).unwrap_or_default();
    match line_of(&text, |line| line.trim() == "[nfsd]") {
        Some(number) => format!("sudo sed -i '{number}a {lines}' {CONF}"),
        None => format!("printf '[nfsd]\\n{lines}\\n' | sudo tee -a {CONF}"),
    }
}

/// Adds an argument to the kernel's command line, and makes it hold.
pub(super) fn kernel_argument(system: &dyn System, argument: &str) -> String {
    const GRUB: &str = "/etc/default/grub";
    let text = system.whole_text(GRUB).unwrap_or_default();
    match line_of(&text, |line| line.starts_with("GRUB_CMDLINE_LINUX=\"")) {
        Some(number) => {
            format!("sudo sed -i '{number}s/=\"/&{argument} /' {GRUB} && sudo update-grub && sudo reboot")
        }
        None => format!(
            "sudo grubby --update-kernel=ALL --args={argument} && sudo reboot; without grubby: add {argument} to the kernel's command line in the boot loader's configuration"
        ),
    }
}

/// Puts one word in the place of another in one line of a file.
pub(super) fn replace(place: &str, line: usize, from: &str, to: &str) -> String {
    format!("sudo sed -i '{line}s/{}/{to}/' {}", from.replace('.', "\\."), quoted(place))
}

/// Where the JSON text has the key of this path, as `fs.block`: the line of its last name.
pub(super) fn json_line(text: &str, path: &str) -> Option<usize> {
    let mut at = 0;
    for name in path.split('.') {
        at += text.get(at..)?.find(&format!("\"{name}\""))? + 1;
    }
    Some(text.get(..at)?.matches('\n').count() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_by_their_path() {
        let text = "{\n \"block\": 1,\n \"fs\": {\n  \"block\": 2\n }\n}";
        assert_eq!(json_line(text, "fs.block"), Some(4));
        assert_eq!(json_line(text, "block"), Some(2));
        assert_eq!(json_line(text, "fs.none"), None);
    }
}
