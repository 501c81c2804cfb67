//! Folders that an NFS server of this machine exports.

use crate::system::System;

/// The list that `exportfs` keeps, or else its configuration.
const LISTS: [&str; 2] = ["/var/lib/nfs/etab", "/etc/exports"];

/// A folder that is exported.
pub(crate) struct Export {
    pub path: String,
    /// Where that stands, as `/etc/exports:3`.
    pub place: String,
    /// The line.
    pub text: String,
}

/// All of them, each once.
pub(crate) fn exports(system: &dyn System) -> Vec<Export> {
    let Some((list, text)) = LISTS.iter().find_map(|list| Some((list, system.whole_text(list)?))) else {
        return Vec::new();
    };
    let mut all: Vec<Export> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if let Some(path) = exported(line).filter(|path| all.iter().all(|known| known.path != *path)) {
            all.push(Export { path, place: format!("{list}:{}", number + 1), text: line.trim().to_owned() });
        }
    }
    all
}

/// The folder of a line: `/data *(rw)`, with blanks in quotes or as octal digits.
fn exported(line: &str) -> Option<String> {
    let line = line.trim();
    let path = match line.strip_prefix('"') {
        Some(rest) => rest.split_once('"')?.0,
        None => line.split_whitespace().next()?,
    };
    path.starts_with('/').then(|| forebay_sys::kernel_text::unescape(path))
}

#[cfg(test)]
mod tests {
    use super::exported;

    #[test]
    fn lines_of_exports() {
        let of = |line: &str| exported(line).unwrap_or_default();
        assert_eq!(of("/data *(rw)"), "/data");
        assert_eq!(of("  \"/my data\" *(rw)"), "/my data");
        assert_eq!(of("/my\\040data\t*(rw)"), "/my data");
        assert_eq!([of("# /data"), of(""), of("-rw host")], ["", "", ""]);
    }
}
