//! `--unlink`: files that the run has made are removed when it ends, after an error or an interrupt, too.

use std::fs;
use std::path::{Path, PathBuf};

/// Files and directories that the run has made.
pub(crate) struct MadeFiles {
    unlink: bool,
    files: Vec<PathBuf>,
    directories: Vec<PathBuf>,
}

impl MadeFiles {
    /// None yet. They stay unless `unlink`.
    pub(crate) const fn new(unlink: bool) -> Self {
        Self { unlink, files: Vec::new(), directories: Vec::new() }
    }

    /// A file that was not there before.
    pub(crate) fn add(&mut self, path: &Path) {
        self.files.push(path.to_owned());
    }

    /// A directory that was not there before; it is removed if it is empty by then.
    pub(crate) fn add_directory(&mut self, path: &Path) {
        self.directories.push(path.to_owned());
    }

    /// They are not whole: they are removed in any case.
    pub(crate) const fn discard(&mut self) {
        self.unlink = true;
    }

    /// Removes them; what could not be removed.
    pub(crate) fn remove(&mut self) -> Option<String> {
        let files = std::mem::take(&mut self.files);
        let directories = std::mem::take(&mut self.directories);
        if !self.unlink {
            return None;
        }
        let failed = |path: &PathBuf| {
            let error = fs::remove_file(path).err()?;
            (error.kind() != std::io::ErrorKind::NotFound).then(|| format!("{}: {error}", path.display()))
        };
        let left: Vec<String> = files.iter().filter_map(failed).collect();
        for directory in directories.iter().rev() {
            // One that holds files of others stays.
            let _ = fs::remove_dir(directory);
        }
        let first = left.first()?;
        Some(format!("--unlink could not remove {} of {} files: {first}", left.len(), files.len()))
    }
}

impl Drop for MadeFiles {
    fn drop(&mut self) {
        self.remove();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_files_go_and_others_stay() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::create_dir_all(at("new/full")).unwrap();
        fs::create_dir(at("new/empty")).unwrap();
        for name in ["made", "other", "new/full/other"] {
            fs::write(at(name), "").unwrap();
        }
        for (unlink, stays) in [(false, true), (true, false)] {
            let mut made = MadeFiles::new(unlink);
            for name in ["new", "new/full", "new/empty"] {
                made.add_directory(&at(name));
            }
            made.add(&at("made"));
            made.add(&at("gone before"));
            drop(made);
            assert_eq!((at("made").exists(), at("new/empty").exists()), (stays, stays));
            assert!(at("other").exists() && at("new/full/other").exists());
        }
        let mut made = MadeFiles::new(true);
        made.add(directory.path());
        assert!(made.remove().unwrap().contains("1 of 1 files"));
    }
}
