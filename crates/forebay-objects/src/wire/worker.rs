//! A thread of the network: it serves connections, and takes calls for them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};
use forebay_remote::stop::{SLICE, is_stopped, stopped};
use forebay_sys::threads;

use super::exchange::{Exchange, Turn, Wire};
use super::job::Job;
use super::line::Line;
use super::mail::Mailbox;
use super::opening::Opening;
use super::poller::{Interest, Poller};
use super::pool::{NextCall, Pool, ThreadPlace};
use super::socket::Socket;

/// How often a call is sent again whose connection was closed before a byte of its reply came.
const MOST_RESENT: u32 = 2;
/// How often a thread without a call looks whether connections were kept for long enough.
const NAP: Duration = Duration::from_secs(1);

/// A thread.
pub(super) struct Worker {
    pool: Arc<Pool>,
    place: Arc<ThreadPlace>,
    poller: Poller,
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// Connections that go on without an event.
    ready: Vec<u64>,
    /// When it last looked at the time limits, and served a connection.
    checked: Instant,
    used: Instant,
}

#[derive(Default)]
struct Slot {
    /// How many connections had it before: tokens of those mean nothing.
    generation: u32,
    work: Option<Work>,
}

struct Work {
    state: WorkState,
    /// What its socket is registered for; `None`: it is not.
    registered: Option<Interest>,
    /// When bytes last came or went, or it was paused.
    since: Instant,
    is_paused: bool,
}

enum WorkState {
    Opening(Opening, Job),
    Call(Box<Exchange>, Line),
}

impl Work {
    fn new(state: WorkState) -> Self {
        Self { state, registered: None, since: Instant::now(), is_paused: false }
    }

    fn socket(&self) -> Option<&Socket> {
        match &self.state {
            WorkState::Opening(opening, _) => opening.socket(),
            WorkState::Call(_, line) => Some(line.stream.socket()),
        }
    }

    fn interest(&self) -> Interest {
        let wants_to_send = match &self.state {
            WorkState::Opening(opening, _) => opening.wants_to_send(),
            WorkState::Call(exchange, line) => exchange.wants_to_send() || line.stream.wants_to_send(),
        };
        if wants_to_send { Interest::ReadWrite } else { Interest::Read }
    }
}

/// Starts a thread.
pub(super) fn spawn(pool: &Arc<Pool>) -> Result<()> {
    let started = try_spawn(pool);
    pool.started(started.as_ref().ok().cloned());
    started.map(drop)
}

fn try_spawn(pool: &Arc<Pool>) -> Result<Arc<ThreadPlace>> {
    let (poller, waker) = Poller::new()?;
    let place = Arc::new(ThreadPlace { mailbox: Arc::new(Mailbox::new(waker)), lines: AtomicUsize::new(0) });
    let worker = Worker {
        pool: pool.clone(),
        place: place.clone(),
        poller,
        slots: Vec::new(),
        free: Vec::new(),
        ready: Vec::new(),
        checked: Instant::now(),
        used: Instant::now(),
    };
    let cannot = |error: std::io::Error| Error::from_io(&error, "cannot start a thread for connections");
    threads::spawn("forebay-wire", move || worker.run()).map_err(cannot)?;
    Ok(place)
}

impl Worker {
    fn run(mut self) {
        let mut tokens = Vec::new();
        loop {
            self.place.mailbox.take(&mut tokens);
            tokens.drain(..).for_each(|token| self.turn(token));
            self.begin();
            std::mem::swap(&mut self.ready, &mut tokens);
            tokens.drain(..).for_each(|token| self.turn(token));
            if self.checked.elapsed() >= SLICE {
                self.check();
                if self.lines() == 0 && self.is_over() {
                    return;
                }
            }
            self.wait(&mut tokens);
            tokens.drain(..).for_each(|token| self.turn(token));
        }
    }

    fn lines(&self) -> usize {
        self.place.lines.load(Ordering::Relaxed)
    }

    /// Whether the thread ends.
    fn is_over(&self) -> bool {
        (self.used.elapsed() >= self.pool.limits.thread || self.pool.is_over())
            && self.pool.remove_thread(&self.place)
    }

    /// Waits for an event, another thread, or the next look at the time limits.
    fn wait(&mut self, tokens: &mut Vec<u64>) {
        let mut most = if self.lines() == 0 { NAP.min(self.pool.limits.thread) } else { SLICE };
        self.place.mailbox.sleeps();
        if !self.ready.is_empty() || self.begin() || self.place.mailbox.has_mail() {
            most = Duration::ZERO;
        }
        let is_well = self.poller.wait(most, tokens);
        self.place.mailbox.is_awake();
        if !is_well {
            self.start_over();
        }
    }

    /// Begins calls that wait. Whether there was one.
    fn begin(&mut self) -> bool {
        let mut has_begun = false;
        while let Some(next) = self.pool.next(&self.place) {
            has_begun = true;
            self.used = Instant::now();
            match next {
                NextCall::On(job, line) => self.call(job, line),
                NextCall::New(job, at) => self.open(job, at),
            }
        }
        has_begun
    }

    /// Makes a connection for a call.
    fn open(&mut self, job: Job, at: SocketAddr) {
        let begun = self.pool.tls().and_then(|tls| Opening::begin(at, self.pool.limits.connect, tls));
        match begun {
            Ok(opening) => {
                self.pool.clock.asked(Instant::now());
                let token = self.insert(Work::new(WorkState::Opening(opening, job)));
                self.register(token);
            }
            Err(error) => self.not_opened(job, at, error),
        }
    }

    /// Sends a call on a connection.
    fn call(&mut self, mut job: Job, line: Line) {
        let head = job.head.take().map_or_else(|| self.pool.heads.head(&job.ask, &job.body), Ok);
        match head {
            Ok(head) => {
                self.pool.clock.asked(Instant::now());
                let exchange = Box::new(Exchange::new(job, head));
                let token = self.insert(Work::new(WorkState::Call(exchange, line)));
                self.turn(token);
            }
            Err(error) => {
                self.pool.keep(line, self.pool.limits.keep);
                job.end(Err(error));
            }
        }
    }

    fn insert(&mut self, work: Work) -> u64 {
        let index = self.free.pop().unwrap_or(self.slots.len());
        if index == self.slots.len() {
            self.slots.push(Slot::default());
        }
        let slot = &mut self.slots[index];
        let token = u64::from(slot.generation) << 32 | index as u64;
        if let WorkState::Call(exchange, _) = &work.state {
            exchange.job.place.set(Some((self.place.mailbox.clone(), token)));
        }
        slot.work = Some(work);
        self.place.lines.fetch_add(1, Ordering::Relaxed);
        token
    }

    fn slot(&mut self, token: u64) -> Option<&mut Slot> {
        let (index, generation) = (token as u32 as usize, (token >> 32) as u32);
        self.slots.get_mut(index).filter(|slot| slot.generation == generation)
    }

    /// Takes a connection out of its slot, and out of the poller.
    fn remove(&mut self, token: u64) -> Option<WorkState> {
        let slot = self.slot(token)?;
        let work = slot.work.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(token as u32 as usize);
        self.place.lines.fetch_sub(1, Ordering::Relaxed);
        if let Some(socket) = work.socket().filter(|_| work.registered.is_some()) {
            self.poller.remove(socket);
        }
        Some(work.state)
    }

    /// Has the poller wait for what the connection waits for.
    fn register(&mut self, token: u64) {
        let (index, poller) = (token as u32 as usize, &self.poller);
        let Some(work) = self.slots.get_mut(index).and_then(|slot| slot.work.as_mut()) else { return };
        let interest = work.interest();
        let Some(socket) = work.socket() else { return };
        let done = match work.registered {
            Some(before) if before == interest => return,
            Some(_) => poller.change(socket, token, interest),
            None => poller.add(socket, token, interest),
        };
        work.registered = Some(interest);
        if let Err(error) = done {
            self.fail(token, Error::from_io(&error, "cannot wait for a connection"));
        }
    }

    /// A paused connection is out of the poller: its events would end each wait.
    fn pause(&mut self, token: u64) {
        let (index, poller) = (token as u32 as usize, &self.poller);
        let Some(work) = self.slots.get_mut(index).and_then(|slot| slot.work.as_mut()) else { return };
        work.is_paused = true;
        if work.registered.take().is_some()
            && let Some(socket) = work.socket()
        {
            poller.remove(socket);
        }
    }

    /// A connection goes on.
    fn turn(&mut self, token: u64) {
        let now = Instant::now();
        let (pool, keep) = (self.pool.clone(), self.pool.limits.keep);
        let Some(work) = self.slot(token).and_then(|slot| slot.work.as_mut()) else { return };
        if std::mem::take(&mut work.is_paused) {
            work.since = now;
        }
        match &mut work.state {
            WorkState::Opening(opening, _) => {
                let turn = opening.turn(&pool.site);
                self.opened(token, turn);
            }
            WorkState::Call(exchange, line) => {
                let (stream, input) = (&mut line.stream, &mut line.input);
                let before = exchange.progress();
                let turn = exchange.turn(&mut Wire { stream, input, copied: &pool.copied, keep });
                let behind = exchange.progress();
                if before != behind {
                    work.since = now;
                }
                if before.1 != behind.1 {
                    pool.clock.heard(now);
                }
                self.served(token, turn);
            }
        }
    }

    fn opened(&mut self, token: u64, turn: Result<bool>) {
        if let Ok(false) = turn {
            return self.register(token);
        }
        let Some(WorkState::Opening(opening, job)) = self.remove(token) else { return };
        let at = opening.at();
        let stream = match turn.map(|_| opening.into_stream()) {
            Ok(Some(stream)) => stream,
            Ok(None) => return self.not_opened(job, at, lost()),
            Err(error) => return self.not_opened(job, at, error),
        };
        self.pool.connected(at, stream.transport());
        let line = Line { stream, input: <_>::default(), at, is_kept: false, until: Instant::now() };
        self.call(job, line);
    }

    /// There is no connection to an address: others are tried.
    fn not_opened(&mut self, mut job: Job, at: SocketAddr, error: Error) {
        self.pool.closed(at);
        // A certificate, or a proxy's refusal, is the same at another address.
        if matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::InvalidInput | ErrorKind::Corrupt)
        {
            return job.end(Err(error));
        }
        job.refused += 1;
        if job.refused < self.pool.refused(at, &error) {
            return self.pool.push_again(job);
        }
        job.end(Err(error.with("server", &self.pool.site.host)));
    }

    /// A call had its turn.
    fn served(&mut self, token: u64, turn: Turn) {
        match turn {
            Turn::Waits => self.register(token),
            Turn::GoesOn => self.ready.push(token),
            Turn::Paused => self.pause(token),
            Turn::Ended(result, keeps) => {
                let Some(WorkState::Call(exchange, line)) = self.remove(token) else { return };
                self.used = Instant::now();
                match keeps {
                    Some(time) => self.pool.keep(line, time),
                    None => self.close(line),
                }
                exchange.job.end(result.map_err(|error| error.with("server", &self.pool.site.host)));
            }
            Turn::Unanswered(error) => self.unanswered(token, error),
        }
    }

    fn close(&self, line: Line) {
        self.pool.closed(line.at);
        drop(line);
    }

    /// A connection was lost before a byte of the reply came. A kept one may have been closed when the call was sent.
    fn unanswered(&mut self, token: u64, error: Error) {
        let Some(WorkState::Call(exchange, line)) = self.remove(token) else { return };
        let was_kept = line.is_kept;
        self.close(line);
        let mut job = exchange.job;
        if was_kept && job.resent < MOST_RESENT {
            job.resent += 1;
            job.place.set(None);
            return self.pool.push_again(job);
        }
        job.end(Err(error.with("server", &self.pool.site.host)));
    }

    /// Ends a call and its connection with an error.
    fn fail(&mut self, token: u64, error: Error) {
        match self.remove(token) {
            Some(WorkState::Call(exchange, line)) => {
                self.close(line);
                exchange.job.end(Err(error));
            }
            Some(WorkState::Opening(opening, job)) if error.kind() == ErrorKind::Timeout => {
                self.not_opened(job, opening.at(), error);
            }
            Some(WorkState::Opening(opening, job)) => {
                self.pool.closed(opening.at());
                job.end(Err(error));
            }
            None => {}
        }
    }

    fn tokens(&self) -> Vec<u64> {
        let token = |(index, slot): (usize, &Slot)| {
            slot.work.as_ref().map(|_| u64::from(slot.generation) << 32 | index as u64)
        };
        self.slots.iter().enumerate().filter_map(token).collect()
    }

    /// Looks at the time limits, and whether waiting is to stop.
    fn check(&mut self) {
        let now = Instant::now();
        self.checked = now;
        self.pool.close_old(now);
        let is_stopped = is_stopped();
        if is_stopped {
            let ended = self.pool.waiting(|job| job.is_impatient(now));
            ended.into_iter().for_each(|job| job.end(Err(stopped())));
        }
        for token in self.tokens() {
            if let Err(error) = self.check_one(token, now, is_stopped) {
                self.fail(token, error);
            }
        }
    }

    fn check_one(&mut self, token: u64, now: Instant, is_stopped: bool) -> Result<()> {
        let (pool, limit) = (self.pool.clone(), self.pool.limits.silence);
        let Some(work) = self.slot(token).and_then(|slot| slot.work.as_ref()) else { return Ok(()) };
        let job = match &work.state {
            WorkState::Opening(opening, job) => {
                opening.check(now)?;
                job
            }
            WorkState::Call(exchange, _) => &exchange.job,
        };
        if is_stopped && job.is_impatient(now) {
            return Err(stopped());
        }
        if work.is_paused {
            return Ok(());
        }
        pool.clock.waits(now);
        if now.saturating_duration_since(work.since) >= limit {
            let silent =
                Error::new(ErrorKind::Timeout, "the server is silent").with("server", &pool.site.host);
            return Err(silent.with("seconds", limit.as_secs()));
        }
        Ok(())
    }

    /// The program closed the descriptors: all calls of this thread end, and later ones find new ones.
    fn start_over(&mut self) {
        for token in self.tokens() {
            self.fail(token, lost());
        }
        match Poller::new() {
            Ok((poller, waker)) => {
                self.place.mailbox.replace(waker);
                self.poller = poller;
            }
            // The next wait tries again.
            Err(_) => std::thread::sleep(SLICE),
        }
    }
}

/// The error for descriptors of ours that the program closed.
fn lost() -> Error {
    Error::from_errno(libc::EBADF, "a descriptor of forebay's was closed by the program")
        .hint("close only your own descriptors: closefrom and close_range take those of libraries, too")
}
