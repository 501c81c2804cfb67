//! Remote procedure calls (RFC 5531): headers, and the caller's identity.

use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use forebay_error::{Error, ErrorKind};

use crate::protocol::xdr::{Malformed, XdrReader, XdrWriter};

/// A program and its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RpcProgram {
    /// Its number.
    pub number: u32,
    /// Its version.
    pub version: u32,
}

/// The most bytes of a verifier (RFC 5531 §8.2).
const MAX_VERIFIER_BYTES: usize = 400;

/// The most groups that a credential of AUTH_SYS names.
const MAX_GROUPS: usize = 16;

/// The number of the next call. It begins at random: two processes of one host may share a server's cache of replies.
pub fn next_xid() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    static START: std::sync::Once = std::sync::Once::new();
    START.call_once(|| NEXT.store(random() as u32, Ordering::Relaxed));
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A number that differs from process to process.
pub(crate) fn random() -> u64 {
    let mut bytes = [0u8; 8];
    // SAFETY: the place has 8 bytes.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), 8, libc::GRND_NONBLOCK) };
    if got == 8 {
        return u64::from_ne_bytes(bytes);
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
    now.rotate_left(17) ^ u64::from(std::process::id()) << 32
}

/// The caller's identity: AUTH_SYS with this process's own ids, as the kernel would send them. They cannot be set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credential {
    /// Flavor, length and body.
    bytes: Vec<u8>,
    uid: u32,
}

impl Credential {
    /// The present ids of this thread.
    pub fn of_process() -> Self {
        // SAFETY: no pointers are passed.
        let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
        let mut groups = [0; 1024];
        // SAFETY: the place has that many entries.
        let count = unsafe { libc::getgroups(groups.len() as i32, groups.as_mut_ptr()) }.max(0) as usize;
        let (uids, gids) = (IdMap::read("/proc/self/uid_map"), IdMap::read("/proc/self/gid_map"));
        let groups: Vec<_> = groups[..count].iter().map(|group| gids.outer(*group)).collect();
        Self::new(uids.outer(uid), gids.outer(gid), &groups)
    }

    fn new(uid: u32, gid: u32, groups: &[u32]) -> Self {
        let groups = &groups[..groups.len().min(MAX_GROUPS)];
        let mut place = [0; 400];
        let name = host_name();
        let mut body = XdrWriter::new(&mut place);
        body.u32(0);
        body.opaque(&name.as_bytes()[..name.len().min(64)]);
        body.u32(uid);
        body.u32(gid);
        body.u32(groups.len() as u32);
        for group in groups {
            body.u32(*group);
        }
        let len = body.len();
        let mut bytes = [1u32.to_be_bytes(), (len as u32).to_be_bytes()].concat();
        bytes.extend(&place[..len]);
        Self { bytes, uid }
    }

    /// The user id that servers see.
    pub const fn uid(&self) -> u32 {
        self.uid
    }
}

fn host_name() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname")
        .map_or_else(|_| "localhost".to_owned(), |name| name.trim().to_owned())
}

/// What ids of a user namespace are outside.
struct IdMap(Vec<[u32; 3]>);

impl IdMap {
    fn read(path: &str) -> Self {
        Self::parse(&fs::read_to_string(path).unwrap_or_default())
    }

    fn parse(text: &str) -> Self {
        let entry = |line: &str| {
            let mut words = line.split_whitespace().map(str::parse);
            Some([words.next()?.ok()?, words.next()?.ok()?, words.next()?.ok()?])
        };
        Self(text.lines().filter_map(entry).collect())
    }

    /// An id without a place outside is nobody's, as in the kernel.
    fn outer(&self, id: u32) -> u32 {
        const NOBODY: u32 = 65534;
        if self.0.is_empty() {
            return id;
        }
        let of = |[inner, outer, count]: &[u32; 3]| {
            (id >= *inner && id - inner < *count).then(|| outer.wrapping_add(id - inner))
        };
        self.0.iter().find_map(of).unwrap_or(NOBODY)
    }
}

/// Writes the header of a call.
pub fn call(to: &mut XdrWriter<'_>, xid: u32, program: RpcProgram, procedure: u32, who: Option<&Credential>) {
    to.words(&[xid, 0, 2, program.number, program.version, procedure]);
    match who {
        Some(who) => to.raw(&who.bytes),
        None => to.u64(0),
    }
    to.u64(0);
}

/// Why a server did not carry out a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectedCall {
    /// It has no such program.
    NoProgram,
    /// It has other versions of the program: from and to.
    Versions(u32, u32),
    /// It has no such procedure.
    NoProcedure,
    /// It could not read the arguments.
    Arguments,
    /// It failed inside.
    System,
    /// It does not take RPC version 2.
    RpcVersion,
    /// It does not take the credential.
    Credential(u32),
}

impl RejectedCall {
    /// The error of a call that was not carried out.
    pub fn error(self, doing: &str) -> Error {
        let new = |kind, why: &str| Error::new(kind, format!("{doing}: {why}"));
        match self {
            Self::NoProgram => new(ErrorKind::Unsupported, "the server does not offer this service"),
            Self::Versions(low, high) => {
                new(ErrorKind::Unsupported, "the server does not speak this version")
                    .with("offers", if low == high { low.to_string() } else { format!("{low}..{high}") })
                    .hint("add ?version=3 or ?version=4 to the URL")
            }
            Self::NoProcedure => new(ErrorKind::Unsupported, "the server does not have this call"),
            Self::Arguments => new(ErrorKind::Io, "the server could not read the call"),
            Self::System => new(ErrorKind::Io, "the server failed inside"),
            Self::RpcVersion => new(ErrorKind::Unsupported, "the server does not speak RPC version 2"),
            Self::Credential(5) => {
                new(ErrorKind::PermissionDenied, "the server asks for stronger credentials (sec=krb5?)")
                    .hint("export with sec=sys, or read through the kernel's mount")
            }
            Self::Credential(code) => new(ErrorKind::PermissionDenied, "the server refuses AUTH_SYS")
                .with("auth_stat", code)
                .hint("add `insecure` to the export, or run as root: many servers want a port below 1024"),
        }
    }
}

/// The number of the call that a reply is of.
#[inline]
pub fn reply_xid(from: &mut XdrReader<'_>) -> Result<u32, Malformed> {
    let xid = from.u32()?;
    if from.u32()? == 1 { Ok(xid) } else { Err(Malformed("a call where a reply is due")) }
}

/// What stands between the number and the results.
#[inline]
pub fn reply(from: &mut XdrReader<'_>) -> Result<Result<(), RejectedCall>, Malformed> {
    // Accepted, without a verifier, and done.
    if let Ok([0, _flavor, 0, 0]) = from.clone().words() {
        from.skip(16)?;
        return Ok(Ok(()));
    }
    match from.u32()? {
        0 => accepted(from),
        1 => match from.u32()? {
            0 => Ok(Err(RejectedCall::RpcVersion)),
            1 => Ok(Err(RejectedCall::Credential(from.u32()?))),
            _ => Err(Malformed("an unknown reject_stat")),
        },
        _ => Err(Malformed("an unknown reply_stat")),
    }
}

fn accepted(from: &mut XdrReader<'_>) -> Result<Result<(), RejectedCall>, Malformed> {
    from.u32()?;
    from.opaque(MAX_VERIFIER_BYTES)?;
    Ok(match from.u32()? {
        0 => Ok(()),
        1 => Err(RejectedCall::NoProgram),
        2 => Err(RejectedCall::Versions(from.u32()?, from.u32()?)),
        3 => Err(RejectedCall::NoProcedure),
        4 => Err(RejectedCall::Arguments),
        5 => Err(RejectedCall::System),
        _ => return Err(Malformed("an unknown accept_stat")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_those_outside_of_a_user_namespace() {
        let map = IdMap::parse("         0       1000          1\n         1     100000      65536\n");
        assert_eq!([0, 1, 65536, 65537].map(|id| map.outer(id)), [1000, 100_000, 165_535, 65534]);
        assert_eq!(IdMap::parse("").outer(7), 7);
        assert_eq!(IdMap::parse("0 0 4294967295").outer(1000), 1000);
    }

    #[test]
    fn a_credential_names_sixteen_groups_at_most() {
        let groups: Vec<_> = (0..40).collect();
        let credential = Credential::new(5, 6, &groups);
        let mut reader = XdrReader::new(&credential.bytes);
        assert_eq!(reader.u32(), Ok(1));
        let body = reader.opaque(400).unwrap();
        assert!(reader.rest().is_empty());
        let mut body = XdrReader::new(body);
        body.u32().unwrap();
        body.opaque(255).unwrap();
        assert_eq!((body.u32(), body.u32(), body.u32()), (Ok(5), Ok(6), Ok(16)));
        assert_eq!(body.rest().len(), 64);
    }

    #[test]
    fn a_call_has_the_header_of_rfc_5531() {
        let mut place = [0; 64];
        let mut writer = XdrWriter::new(&mut place);
        call(&mut writer, 9, RpcProgram { number: 100_003, version: 3 }, 6, None);
        let len = writer.finish().unwrap();
        let words: Vec<_> =
            place[..len].chunks(4).map(|word| u32::from_be_bytes(word.try_into().unwrap())).collect();
        assert_eq!(words, [9, 0, 2, 100_003, 3, 6, 0, 0, 0, 0]);
    }

    /// An export with sec=krb5, as version 3 says it: AUTH_TOOWEAK.
    #[test]
    fn stronger_credentials_are_refused_with_what_to_do() {
        let words = [1u32, 1, 5].map(u32::to_be_bytes).concat();
        let Ok(Err(rejected)) = reply(&mut XdrReader::new(&words)) else { panic!("not rejected") };
        let error = rejected.error("cannot read");
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        assert!(error.to_string().contains("krb5") && error.hints()[0].contains("sec=sys"), "{error:?}");
    }

    #[test]
    fn numbers_of_calls_do_not_repeat() {
        let first = next_xid();
        assert!((0..1000).all(|_| next_xid() != first));
    }
}
