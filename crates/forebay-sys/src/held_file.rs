//! Files in a program that may close all descriptors that it does not know, and open others under their numbers.

use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;

use crate::descriptor_table::identity;

/// A file that is used, and closed, only while its descriptor still is of it.
#[derive(Debug)]
pub struct HeldFile {
    file: ManuallyDrop<File>,
    /// Device and inode.
    identity: Option<(u64, u64)>,
}

impl HeldFile {
    /// Holds a file.
    pub fn new(file: File) -> Self {
        let identity = identity(file.as_raw_fd());
        Self { file: ManuallyDrop::new(file), identity }
    }

    /// The file; `None` where the program closed its descriptor.
    pub fn get(&self) -> Option<&File> {
        (self.identity.is_some() && identity(self.file.as_raw_fd()) == self.identity).then_some(&*self.file)
    }
}

impl Drop for HeldFile {
    fn drop(&mut self) {
        if self.get().is_some() {
            // SAFETY: dropped here, once, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.file) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_is_another_file_by_now_is_left_alone() {
        let (mine, other) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        let number = mine.as_raw_fd();
        let held = HeldFile::new(mine);
        assert!(held.get().is_some());
        // SAFETY: no pointers are passed; the number is ours.
        unsafe { libc::dup2(other.as_raw_fd(), number) };
        assert!(held.get().is_none());
        drop(held);
        // SAFETY: no pointers are passed; the number is nobody's any more.
        unsafe {
            assert!(libc::fcntl(number, libc::F_GETFD) >= 0, "not closed");
            libc::close(number);
        }
    }
}
