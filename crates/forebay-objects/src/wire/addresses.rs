//! Addresses of a site's name: connections are spread over all of them, but those that take none.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use forebay_error::Error;

/// How long an address is left out that took no connection.
const LEFT_OUT: Duration = Duration::from_secs(30);
/// How long addresses are used before the name is looked up again.
const FRESH: Duration = Duration::from_mins(1);
/// How long they are used behind a look-up that found none.
const RETRY: Duration = Duration::from_secs(5);

/// The addresses of a name.
#[derive(Debug, Default)]
pub(super) struct AddressBook {
    all: Vec<Address>,
    /// When they were found.
    found: Option<Instant>,
    is_asked: bool,
}

/// One of them.
#[derive(Debug)]
struct Address {
    at: SocketAddr,
    /// Connections to it.
    open: usize,
    /// Until when it is left out, and why.
    left_out: Option<(Instant, String)>,
    /// The name has it no more.
    is_gone: bool,
}

impl AddressBook {
    /// Whether the name is to be looked up; the caller does it.
    pub(super) fn asks(&mut self, now: Instant) -> bool {
        let is_stale = self.found.is_none_or(|found| now.saturating_duration_since(found) > FRESH);
        let asks = is_stale && !self.is_asked;
        self.is_asked |= asks;
        asks
    }

    /// The look-up has ended.
    pub(super) fn found(&mut self, addresses: &[SocketAddr], now: Instant) {
        self.is_asked = false;
        if addresses.is_empty() {
            // Known ones serve on: the name is looked up again some time later.
            self.found = if self.len() > 0 { (now + RETRY).checked_sub(FRESH) } else { None };
            return;
        }
        self.found = Some(now);
        for known in &mut self.all {
            known.is_gone = !addresses.contains(&known.at);
        }
        self.all.retain(|known| !known.is_gone || known.open > 0);
        for at in addresses {
            if !self.all.iter().any(|known| known.at == *at) {
                self.all.push(Address { at: *at, open: 0, left_out: None, is_gone: false });
            }
        }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.all.iter().filter(|one| !one.is_gone).count()
    }

    /// The address of the next connection: the one with the fewest of those that take some, else the one that was left out first.
    pub(super) fn next(&mut self, now: Instant) -> Option<SocketAddr> {
        let rank = |one: &Address| {
            let left_out = one.left_out.as_ref().map(|(until, _)| *until).filter(|until| *until > now);
            (left_out, one.open)
        };
        let next = self.all.iter_mut().filter(|one| !one.is_gone).min_by_key(|one| rank(one))?;
        next.open += 1;
        Some(next.at)
    }

    /// A connection has ended.
    pub(super) fn closed(&mut self, at: SocketAddr) {
        if let Some(one) = self.of(at) {
            one.open = one.open.saturating_sub(1);
        }
    }

    /// It took no connection.
    pub(super) fn refused(&mut self, at: SocketAddr, why: &Error, now: Instant) {
        if let Some(one) = self.of(at) {
            one.left_out = Some((now + LEFT_OUT, why.message().to_owned()));
        }
    }

    /// It took one.
    pub(super) fn connected(&mut self, at: SocketAddr) {
        if let Some(one) = self.of(at) {
            one.left_out = None;
        }
    }

    fn of(&mut self, at: SocketAddr) -> Option<&mut Address> {
        self.all.iter_mut().find(|one| one.at == at)
    }

    /// Connections by address.
    pub(super) fn in_use(&self) -> Vec<(SocketAddr, usize)> {
        self.all.iter().filter(|one| one.open > 0).map(|one| (one.at, one.open)).collect()
    }

    /// Those that are left out, and why.
    pub(super) fn left_out(&self, now: Instant) -> Vec<(SocketAddr, String)> {
        let why = |one: &Address| {
            one.left_out.clone().filter(|(until, _)| *until > now).map(|(_, why)| (one.at, why))
        };
        self.all.iter().filter_map(why).collect()
    }
}

#[cfg(test)]
mod tests {
    use forebay_error::ErrorKind;

    use super::*;

    #[test]
    fn connections_are_spread_and_an_address_that_takes_none_is_left_out_for_a_while() {
        let at = |last: u8| SocketAddr::from(([127, 0, 0, last], 80));
        let (mut book, now) = (AddressBook::default(), Instant::now());
        assert!(book.next(now).is_none());
        assert!(book.asks(now) && !book.asks(now));
        book.found(&[at(1), at(2)], now);
        assert!(!book.asks(now));
        assert_eq!([book.next(now), book.next(now), book.next(now)], [at(1), at(2), at(1)].map(Some));
        book.closed(at(2));
        book.refused(at(2), &Error::new(ErrorKind::Io, "refused"), now);
        assert_eq!([book.next(now), book.next(now)], [at(1), at(1)].map(Some));
        assert_eq!(book.left_out(now), [(at(2), "refused".to_owned())]);
        let later = now + LEFT_OUT;
        assert_eq!(book.next(later), Some(at(2)));
        // The only address is tried nevertheless.
        book.refused(at(1), &Error::new(ErrorKind::Io, "refused"), later);
        book.refused(at(2), &Error::new(ErrorKind::Io, "refused"), later + FRESH);
        assert_eq!(book.next(later), Some(at(1)));
        // The name has other addresses by now.
        assert!(book.asks(now + FRESH * 2));
        book.found(&[at(3)], now + FRESH * 2);
        assert_eq!((book.len(), book.next(later)), (1, Some(at(3))));
        book.closed(at(2));
        assert_eq!(book.in_use(), [(at(1), 5), (at(3), 1)]);
    }

    #[test]
    fn a_look_up_that_found_none_is_repeated_and_known_addresses_serve_meanwhile() {
        let at = |last: u8| SocketAddr::from(([127, 0, 0, last], 80));
        let (mut book, mut now) = (AddressBook::default(), Instant::now());
        // Without addresses each call asks.
        for _ in 0..3 {
            assert!(book.asks(now));
            book.found(&[], now);
            assert_eq!(book.next(now), None);
        }
        assert!(book.asks(now));
        book.found(&[at(1)], now);
        now += FRESH + Duration::from_millis(1);
        for _ in 0..3 {
            assert!(book.asks(now));
            book.found(&[], now);
            assert_eq!(book.next(now), Some(at(1)));
            assert!(!book.asks(now + RETRY), "not before it is worth a try");
            now += RETRY + Duration::from_millis(1);
        }
        // The name is back, with another address.
        assert!(book.asks(now));
        book.found(&[at(2)], now);
        assert!(!book.asks(now + FRESH));
        assert_eq!(book.next(now), Some(at(2)));
    }
}
