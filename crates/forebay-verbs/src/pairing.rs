//! Queue pairs that are paired in band: each side tells the other of its end by a message of the program's own.

use std::fmt::Debug;
use std::net::{IpAddr, Ipv6Addr};

use forebay_error::{Error, ErrorKind, Result};

use crate::Connection;

/// The highest queue pair number, and the highest packet sequence number: both have 24 bits.
const HIGHEST: u32 = (1 << 24) - 1;
/// Path MTUs that InfiniBand knows, in bytes.
const MTUS: [u32; 5] = [256, 512, 1024, 2048, 4096];

/// One end of a connection, as its peer hears of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueueEnd {
    /// The queue pair's number, 24 bits.
    pub number: u32,
    /// The sequence number of its first packet, 24 bits: random, and never 0.
    pub first: u32,
    /// The address of its port. With RoCE an IPv4 address stands there as IPv6 maps it.
    pub gid: [u8; 16],
    /// The port's number within its InfiniBand subnet; 0 with RoCE.
    pub lid: u16,
    /// The device's port.
    pub port: u8,
    /// Bytes of its largest packet: 256, 512, 1024, 2048 or 4096.
    pub mtu: u32,
}

impl QueueEnd {
    /// An error if no queue pair can be like this: for what a peer says of itself.
    pub fn check(&self) -> Result<()> {
        let Self { number, first, gid, lid, mtu, .. } = *self;
        let wrong = |field: &'static str, value: String| {
            let message = "cannot pair: the peer's end is out of range";
            Err(Error::new(ErrorKind::InvalidInput, message).with("field", field).with("value", value))
        };
        // 0 and 1 are the queue pairs of InfiniBand's management.
        if !(2..=HIGHEST).contains(&number) {
            return wrong("number", number.to_string());
        }
        if !(1..=HIGHEST).contains(&first) {
            return wrong("first", first.to_string());
        }
        if !MTUS.contains(&mtu) {
            return wrong("mtu", mtu.to_string());
        }
        if gid == [0; 16] && lid == 0 {
            return wrong("gid", Ipv6Addr::from(gid).to_string());
        }
        Ok(())
    }

    /// The path MTU of two ends, in bytes: the smaller one's.
    pub fn path_mtu(&self, other: &Self) -> u32 {
        self.mtu.min(other.mtu)
    }

    /// The address that the GID holds.
    pub fn address(&self) -> IpAddr {
        Ipv6Addr::from(self.gid).to_canonical()
    }
}

/// The GID that RoCE gives to an address.
pub const fn gid_of(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// A random first sequence number. A stranger cannot guess it, and packets of an earlier queue pair with the same number do not fit.
pub fn random_first() -> Result<u32> {
    let mut bytes = [0_u8; 4];
    loop {
        // SAFETY: four bytes of a local variable.
        let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        if got < 0 {
            return Err(Error::last_os("cannot take a random number"));
        }
        let first = u32::from_ne_bytes(bytes) & HIGHEST;
        if first != 0 {
            return Ok(first);
        }
    }
}

/// A queue pair with all receives posted, which knows no peer. Dropped, it takes nothing more.
pub trait UnpairedEnd: Send + Debug {
    /// What the peer needs to pair with it.
    fn own(&self) -> QueueEnd;

    /// Pairs it. The peer is not asked: where it is not paired with this end, operations fail as
    /// [`crate::Failure::Unreachable`]. So post none before its program has said that it is. With a first sequence number that is
    /// not the peer's, they fail too, or (rxe, as InfiniBand wants it) complete without an effect: a device acknowledges packets
    /// that it takes for repeated ones.
    ///
    /// A connection like any other, but that its peer does not hear of its end: operations that the peer posts afterwards fail
    /// as unreachable, which takes a device seconds. [`Connection::private_data`] is empty, and [`Connection::peer`] is the address of
    /// the peer's GID, port 0.
    fn pair(self: Box<Self>, peer: &QueueEnd) -> Result<Box<dyn Connection>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: QueueEnd = QueueEnd {
        number: 17,
        first: 1,
        gid: gid_of(IpAddr::V6(Ipv6Addr::LOCALHOST)),
        lid: 0,
        port: 1,
        mtu: 1024,
    };

    #[test]
    fn an_end_that_cannot_be_names_the_field() {
        END.check().unwrap();
        QueueEnd { gid: [0; 16], lid: 3, ..END }.check().unwrap();
        QueueEnd { number: HIGHEST, first: HIGHEST, mtu: 4096, ..END }.check().unwrap();
        let wrong = [
            ("number", QueueEnd { number: 1, ..END }),
            ("number", QueueEnd { number: HIGHEST + 1, ..END }),
            ("first", QueueEnd { first: 0, ..END }),
            ("first", QueueEnd { first: HIGHEST + 1, ..END }),
            ("mtu", QueueEnd { mtu: 1500, ..END }),
            ("mtu", QueueEnd { mtu: 0, ..END }),
            ("gid", QueueEnd { gid: [0; 16], ..END }),
        ];
        for (field, end) in wrong {
            let error = end.check().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(error.context().contains(&("field", field.to_owned())), "{error}");
        }
    }

    #[test]
    fn gids_and_addresses_are_the_same() {
        for text in ["10.9.0.1", "fe80::1", "2001:db8::7"] {
            let address: IpAddr = text.parse().unwrap();
            assert_eq!(QueueEnd { gid: gid_of(address), ..END }.address(), address);
        }
        assert_eq!(END.path_mtu(&QueueEnd { mtu: 4096, ..END }), 1024);
        assert_eq!(END.path_mtu(&QueueEnd { mtu: 256, ..END }), 256);
    }

    #[test]
    fn first_numbers_differ() {
        let firsts: std::collections::HashSet<_> = (0..64).map(|_| random_first().unwrap()).collect();
        assert!(firsts.len() > 60 && firsts.iter().all(|first| (1..=HIGHEST).contains(first)));
    }
}
