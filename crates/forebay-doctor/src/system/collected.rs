//! Files of another machine, as `collect.sh` prints them there.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use forebay_error::{Error, ErrorKind, Result};

/// Prints the files that are looked at of an NFS server; for `sh` on that server. It writes nothing.
pub const COLLECT: &str = include_str!("collect.sh");

/// Files by their paths on the machine that they are from.
#[derive(Clone, Debug, Default)]
pub struct CollectedFiles(BTreeMap<PathBuf, Node>);

#[derive(Clone, Debug)]
enum Node {
    File(Vec<u8>),
    Link(PathBuf),
    Directory,
    /// Its user may not read it.
    Hidden,
}

impl CollectedFiles {
    /// Reads what the script printed. Its head describes the lines. Fails if the end is missing.
    pub fn parse(text: &str) -> Result<Self> {
        let mut files = Self::default();
        let mut open: Option<PathBuf> = None;
        let mut is_whole = false;
        for line in text.lines() {
            let Some(kind) = line.chars().next() else { continue };
            let rest = &line[kind.len_utf8()..];
            if kind == ' ' {
                files.append(open.as_deref(), rest);
                continue;
            }
            let (path, value) = rest.split_once('\t').unwrap_or((rest, ""));
            let path = PathBuf::from(path);
            let node = match kind {
                '>' => Node::File(Vec::new()),
                '=' => Node::File(format!("{value}\n").into_bytes()),
                '@' => Node::Link(PathBuf::from(value)),
                '/' => Node::Directory,
                '!' => Node::Hidden,
                '.' => {
                    is_whole = true;
                    continue;
                }
                _ => continue,
            };
            // Else it is a banner of the machine's shell.
            if path.is_absolute() {
                open = Some(path.clone());
                files.0.insert(path, node);
            }
        }
        if is_whole {
            return Ok(files);
        }
        Err(Error::new(ErrorKind::Corrupt, "its files were not all printed"))
    }

    fn append(&mut self, path: Option<&Path>, line: &str) {
        if let Some(Node::File(bytes)) = path.and_then(|path| self.0.get_mut(path)) {
            bytes.extend_from_slice(line.as_bytes());
            bytes.push(b'\n');
        }
    }

    /// Paths that this user may not read.
    pub(super) fn hidden(&self) -> Vec<String> {
        let hidden = self.0.iter().filter(|(_, node)| matches!(node, Node::Hidden));
        hidden.map(|(path, _)| path.display().to_string()).collect()
    }

    pub(super) fn link(&self, path: &Path) -> Option<PathBuf> {
        match self.0.get(path)? {
            Node::Link(target) => Some(target.clone()),
            _ => None,
        }
    }

    pub(super) fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        match self.0.get(path) {
            Some(Node::File(bytes)) => Ok(bytes.clone()),
            Some(Node::Hidden) => Err(io::ErrorKind::PermissionDenied.into()),
            Some(_) => Err(io::ErrorKind::IsADirectory.into()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// What is at a path and below it.
    fn below<'a>(&'a self, path: &'a Path) -> impl Iterator<Item = &'a PathBuf> {
        self.0.range(path.to_owned()..).map(|(name, _)| name).take_while(move |name| name.starts_with(path))
    }

    pub(super) fn list(&self, path: &Path) -> Vec<String> {
        let first = |name: &PathBuf| {
            let name = name.strip_prefix(path).ok()?.components().next()?;
            Some(name.as_os_str().to_string_lossy().into_owned())
        };
        let mut names: Vec<String> = self.below(path).filter_map(first).collect();
        names.dedup();
        names
    }

    pub(super) fn exists(&self, path: &Path) -> bool {
        self.below(path).next().is_some()
    }

    pub(super) fn is_dir(&self, path: &Path) -> bool {
        match self.0.get(path) {
            Some(node) => matches!(node, Node::Directory),
            None => self.exists(path),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::{RootedSystem, System};

    #[test]
    fn lines_are_files_links_and_folders() {
        let text = "Welcome to nfs1\n>/etc/exports\n /data *(rw)\n  # two\n=/sys/class/net/ens1/mtu\t9000\n\
                    @/sys/class/block/sda\t../../devices/x/sda\n//sys/devices/x/sda\n!/proc/fs/nfsd/threads\n.\n";
        let files = CollectedFiles::parse(text).unwrap();
        let system = RootedSystem::collected(files);
        assert_eq!(system.read("/etc/exports").unwrap(), b"/data *(rw)\n # two\n");
        assert_eq!(system.number("/sys/class/net/ens1/mtu"), Some(9000));
        assert_eq!(system.resolve("/sys/class/block/sda").as_deref(), Some("/sys/devices/x/sda"));
        assert_eq!(system.list("/sys/class"), ["block", "net"]);
        assert!(system.is_dir("/sys/class/net") && system.is_dir("/sys/devices/x/sda"));
        assert!(!system.exists("/sys/class/ne") && !system.is_dir("/etc/exports"));
        assert_eq!(system.read("/proc/fs/nfsd/threads").unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(system.hidden(), ["/proc/fs/nfsd/threads"]);
        assert!(CollectedFiles::parse(">/etc/exports\n").is_err(), "it broke off");
    }
}
