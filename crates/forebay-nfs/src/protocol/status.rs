//! Statuses of NFS, and what they mean to a user.

use forebay_error::{Error, ErrorKind};
use forebay_source::FileReplaced;

/// A status other than 0, of v3 or v4: they share most numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NfsStatus(pub u32);

const NO_LOW_PORT: &str = "the server refuses ports above 1023, and none below is free";

impl NfsStatus {
    /// The handle's file is gone, or was replaced.
    pub const STALE: Self = Self(70);
    /// The server asks to wait: JUKEBOX of v3, DELAY of v4.
    pub const DELAY: Self = Self(10008);
    /// The server has just started, and lets old clients come back first.
    pub const GRACE: Self = Self(10013);
    /// The operation is not one of the server's.
    pub const NOT_SUPPORTED: Self = Self(10004);
    /// An entry of a directory does not fit into a reply.
    pub const TOO_SMALL: Self = Self(10005);
    /// No such name.
    pub const NO_ENTRY: Self = Self(2);
    /// Something has the name.
    pub const EXISTS: Self = Self(17);

    /// The call is to be sent again later.
    pub fn is_to_wait(self) -> bool {
        [Self::DELAY, Self::GRACE].contains(&self)
    }

    /// The session is not known any more, or its slots are out of step: a new one is needed.
    pub const fn is_session_lost(self) -> bool {
        // STALE_CLIENTID, EXPIRED, BADSESSION, BADSLOT, CONN_NOT_BOUND, SEQ_MISORDERED, SEQ_FALSE_RETRY, DEADSESSION.
        matches!(self.0, 10022 | 10011 | 10052 | 10053 | 10055 | 10063 | 10076 | 10078)
    }

    /// What a listing goes on from is not known any more: BAD_COOKIE, or NOT_SAME of v4.
    pub const fn is_cookie_lost(self) -> bool {
        matches!(self.0, 10003 | 10027)
    }

    /// The server carried the call out, but has forgotten the reply.
    pub const fn is_uncached(self) -> bool {
        self.0 == 10068
    }

    /// The error of a call that was refused where no port below 1024 was free for its connection.
    pub(crate) fn without_low_port(doing: &str) -> Error {
        Error::new(ErrorKind::PermissionDenied, format!("{doing}: {NO_LOW_PORT}"))
            .hint("ss -tan 'sport < :1024' shows who has them; those of ended connections are free after a minute")
            .hint("add `insecure` to the export: any port will do then")
    }

    /// Whether an error is that one.
    pub(crate) fn is_without_low_port(error: &Error) -> bool {
        error.message().ends_with(NO_LOW_PORT)
    }

    fn meaning(self) -> (ErrorKind, &'static str) {
        match self.0 {
            1 => (ErrorKind::PermissionDenied, "not permitted"),
            2 => (ErrorKind::NotFound, "no such file or directory"),
            5 => (ErrorKind::Io, "the server reports an I/O error"),
            13 => (ErrorKind::PermissionDenied, "permission denied"),
            20 => (ErrorKind::InvalidInput, "not a directory"),
            21 => (ErrorKind::IsDirectory, "it is a directory"),
            22 => (ErrorKind::InvalidInput, "invalid argument"),
            27 => (ErrorKind::NoSpace, "the file would be too large"),
            28 => (ErrorKind::NoSpace, "no space left on the server"),
            30 => (ErrorKind::ReadOnly, "the export is read-only"),
            63 => (ErrorKind::InvalidInput, "the name is too long"),
            69 => (ErrorKind::NoSpace, "the quota on the server is used up"),
            70 => (ErrorKind::Busy, "the file was removed or replaced on the server (stale handle)"),
            10001 => (ErrorKind::Io, "the server does not know the file handle"),
            10003 | 10027 => (ErrorKind::Busy, "the directory changes all the time"),
            10006 => (ErrorKind::Io, "the server failed inside"),
            10008 => (ErrorKind::Busy, "the server asks to wait"),
            10012 => (ErrorKind::Busy, "another client has locked the range"),
            10013 => (ErrorKind::Busy, "the server has just started and waits for its clients"),
            10014 => (ErrorKind::Io, "the file handle has expired"),
            10015 => (ErrorKind::Busy, "another client has denied sharing"),
            10016 => (ErrorKind::PermissionDenied, "the export asks for other security (sec=krb5?)"),
            10021 => (ErrorKind::Unsupported, "the server does not offer this minor version"),
            10029 => (ErrorKind::Unsupported, "the path has a symbolic link"),
            10011 | 10022 | 10052 | 10053 | 10055 | 10063 | 10076 | 10078 => {
                (ErrorKind::Io, "the server does not keep the session")
            }
            10068 => (ErrorKind::Io, "the server has forgotten its reply"),
            10025 | 10038 => {
                (ErrorKind::Unsupported, "the server does not take reads and writes without an open")
            }
            _ => (ErrorKind::Io, "the server reports an error"),
        }
    }

    /// Whether the server refuses the caller: its user, or its port.
    pub const fn is_refusal(self) -> bool {
        matches!(self.0, 1 | 13)
    }

    /// The error of a call with this status. `uid` is the caller's.
    pub fn error(self, doing: &str, uid: u32) -> Error {
        let (kind, meaning) = self.meaning();
        let error = Error::new(kind, format!("{doing}: {meaning}"));
        match self.0 {
            1 | 13 if uid == 0 => {
                error.hint("root is nobody on exports with root_squash: run as the file's owner")
            }
            1 | 13 => error
                .hint("check the file's owner and mode")
                .hint("add `insecure` to the export: this process may use no port below 1024"),
            20 => error.hint("check the path: one of its folders is a file"),
            21 => error.hint("name a file in it"),
            28 => error.hint("free some space on the server"),
            30 => error.hint("export it with `rw`"),
            70 => error.source(FileReplaced),
            10016 => error.hint("export with sec=sys, or read through the kernel's mount"),
            10025 | 10038 => error.hint("read through the kernel's mount; or add ?version=3 to the URL"),
            10029 => error.hint("name the file that the link leads to"),
            _ if kind == ErrorKind::Io => error.with("nfs_status", self.0),
            _ => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_say_what_to_do() {
        let error = NfsStatus(13).error("cannot read", 0);
        assert_eq!(error.to_string(), "cannot read: permission denied");
        assert!(error.hints()[0].contains("root_squash"));
        let error = NfsStatus::STALE.error("cannot read", 5);
        assert!(error.kind() == ErrorKind::Busy && error.is_caused_by::<FileReplaced>());
        assert!(!NfsStatus::DELAY.error("cannot read", 5).is_caused_by::<FileReplaced>());
        assert!(error.to_string().contains("stale handle"), "{error}");
        assert_eq!(NfsStatus(30).error("cannot write", 5).kind(), ErrorKind::ReadOnly);
        assert!(
            NfsStatus::DELAY.is_to_wait() && NfsStatus::GRACE.is_to_wait() && !NfsStatus::STALE.is_to_wait()
        );
    }
}
