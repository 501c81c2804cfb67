//! The connections that a thread serves, and what it waits for.

use std::time::{Duration, Instant};

use forebay_error::Result;

use super::exchange::Exchange;
use super::job::Job;
use super::line::Line;
use super::opening::Opening;
use super::poller::{Interest, Poller, Waker};
use super::socket::Socket;

/// Connections, by tokens.
pub(super) struct Table {
    poller: Poller,
    slots: Vec<Slot>,
    free: Vec<usize>,
}

#[derive(Default)]
struct Slot {
    /// How many connections had it before: tokens of those mean nothing.
    generation: u32,
    work: Option<Work>,
}

/// A connection that is served.
pub(super) struct Work {
    pub(super) state: WorkState,
    /// What its socket is registered for; `None`: it is not.
    registered: Option<Interest>,
    /// When bytes last came or went, or it was paused.
    pub(super) since: Instant,
    pub(super) is_paused: bool,
}

/// What it is used for.
pub(super) enum WorkState {
    Opening(Box<Opening>, Job),
    Call(Box<Exchange>, Line),
}

impl Work {
    pub(super) fn new(state: WorkState) -> Self {
        Self { state, registered: None, since: Instant::now(), is_paused: false }
    }

    pub(super) fn job(&self) -> &Job {
        match &self.state {
            WorkState::Opening(_, job) => job,
            WorkState::Call(exchange, _) => &exchange.job,
        }
    }

    fn socket(&self) -> Option<&Socket> {
        match &self.state {
            WorkState::Opening(opening, _) => opening.socket(),
            WorkState::Call(_, line) => Some(line.stream.socket()),
        }
    }

    /// Whether the server has the whole request, and may work for long before it answers.
    pub(super) fn is_server_at_work(&self) -> bool {
        match &self.state {
            WorkState::Opening(..) => false,
            WorkState::Call(exchange, _) => exchange.job.ask.takes_long() && !exchange.wants_to_send(),
        }
    }

    /// Whether it may have received bytes without an event.
    pub(super) fn waits_for_batch(&self) -> bool {
        matches!(self.state, WorkState::Call(..)) && self.socket().is_some_and(Socket::waits_for_batch)
    }

    fn interest(&self) -> Interest {
        let wants_to_send = match &self.state {
            WorkState::Opening(opening, _) => opening.wants_to_send(),
            WorkState::Call(exchange, line) => exchange.wants_to_send() || line.stream.wants_to_send(),
        };
        if wants_to_send { Interest::ReadWrite } else { Interest::Read }
    }
}

impl Table {
    pub(super) fn new(poller: Poller) -> Self {
        Self { poller, slots: Vec::new(), free: Vec::new() }
    }

    /// Adds a connection; its token.
    pub(super) fn insert(&mut self, work: Work) -> u64 {
        let index = self.free.pop().unwrap_or(self.slots.len());
        if index == self.slots.len() {
            self.slots.push(Slot::default());
        }
        let slot = &mut self.slots[index];
        slot.work = Some(work);
        u64::from(slot.generation) << 32 | index as u64
    }

    /// The connection with this token, if it still is there.
    pub(super) fn get(&mut self, token: u64) -> Option<&mut Work> {
        let (index, generation) = (token as u32 as usize, (token >> 32) as u32);
        self.slots.get_mut(index).filter(|slot| slot.generation == generation)?.work.as_mut()
    }

    /// Takes a connection out of the table and of the poller.
    pub(super) fn remove(&mut self, token: u64) -> Option<WorkState> {
        self.get(token)?;
        let index = token as u32 as usize;
        let slot = &mut self.slots[index];
        let work = slot.work.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(index);
        if let Some(socket) = work.socket().filter(|_| work.registered.is_some()) {
            self.poller.remove(socket);
        }
        Some(work.state)
    }

    /// The tokens of all connections.
    pub(super) fn tokens(&self) -> Vec<u64> {
        let token = |(index, slot): (usize, &Slot)| {
            slot.work.as_ref().map(|_| u64::from(slot.generation) << 32 | index as u64)
        };
        self.slots.iter().enumerate().filter_map(token).collect()
    }

    /// Waits from now on for what the connection waits for.
    pub(super) fn register(&mut self, token: u64) -> std::io::Result<()> {
        let index = token as u32 as usize;
        let Some(work) = self.slots.get_mut(index).and_then(|slot| slot.work.as_mut()) else { return Ok(()) };
        let (interest, before) = (work.interest(), work.registered);
        work.registered = Some(interest);
        match (work.socket(), before) {
            (Some(socket), None) => self.poller.add(socket, token, interest),
            (Some(socket), Some(before)) if before != interest => self.poller.change(socket, token, interest),
            _ => Ok(()),
        }
    }

    /// A connection without room is not waited for: its events would end each wait.
    pub(super) fn pause(&mut self, token: u64) {
        let index = token as u32 as usize;
        let Some(work) = self.slots.get_mut(index).and_then(|slot| slot.work.as_mut()) else { return };
        work.is_paused = true;
        if work.registered.take().is_some()
            && let Some(socket) = work.socket()
        {
            self.poller.remove(socket);
        }
    }

    /// Waits for events, at most so long; tokens of connections that have some. False: the program closed the descriptors.
    pub(super) fn wait(&self, most: Duration, tokens: &mut Vec<u64>) -> bool {
        self.poller.wait(most, tokens)
    }

    /// New descriptors in place of those that the program closed.
    pub(super) fn start_over(&mut self) -> Result<Waker> {
        let (poller, waker) = Poller::new()?;
        self.poller = poller;
        Ok(waker)
    }
}
