//! A thread of the network: it serves connections, and takes calls for them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};
use forebay_remote::endpoint::ServerUnreachable;
use forebay_remote::stop::{SLICE, is_stopped, stopped};
use forebay_sys::threads;

use super::exchange::{Exchange, Turn, Wire};
use super::head::NO_HTTP;
use super::job::Job;
use super::line::Line;
use super::load::{Load, LoadLevel};
use super::mail::Mailbox;
use super::opening::Opening;
use super::poller::Poller;
use super::pool::{NextCall, Pool};
use super::site::Site;
use super::table::{Table, Work, WorkState};
use super::thread_list::ThreadPlace;
use super::tunnel::past;

/// How often a call is sent again whose connection was closed before a byte of its reply came.
const MOST_RESENT: u32 = 2;
/// How often a thread without a call looks whether connections were kept for long enough.
const NAP: Duration = Duration::from_secs(1);

/// A thread.
struct Worker {
    pool: Arc<Pool>,
    place: Arc<ThreadPlace>,
    table: Table,
    /// Connections that go on without an event.
    ready: Vec<u64>,
    load: Load,
    /// When it last looked at the time limits, and had a call.
    checked: Instant,
    used: Instant,
}

/// Starts a thread. The pool expects it.
pub(super) fn spawn(pool: &Arc<Pool>) -> Result<()> {
    let started = try_spawn(pool);
    pool.started(started.as_ref().ok().cloned());
    started.map(drop)
}

fn try_spawn(pool: &Arc<Pool>) -> Result<Arc<ThreadPlace>> {
    let (poller, waker) = Poller::new()?;
    let place = Arc::new(ThreadPlace::new(Mailbox::new(waker)));
    let (pool, own) = (pool.clone(), place.clone());
    let run = move || {
        let now = Instant::now();
        let table = Table::new(poller);
        Worker { pool, place: own, table, ready: Vec::new(), load: Load::new(), checked: now, used: now }
            .run();
    };
    let cannot = |error: std::io::Error| Error::from_io(&error, "cannot start a thread for connections");
    threads::spawn("forebay-wire", run).map_err(cannot)?;
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
            self.ask_for_help();
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
        let began = Instant::now();
        let is_well = self.table.wait(most, tokens);
        self.load.waited(began.elapsed());
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

    fn insert(&mut self, work: Work) -> u64 {
        self.place.lines.fetch_add(1, Ordering::Relaxed);
        self.pool.clock.asked(work.since);
        self.table.insert(work)
    }

    fn remove(&mut self, token: u64) -> Option<WorkState> {
        let removed = self.table.remove(token);
        if removed.is_some() {
            self.place.lines.fetch_sub(1, Ordering::Relaxed);
        }
        removed
    }

    fn register(&mut self, token: u64) {
        if let Err(error) = self.table.register(token) {
            self.fail(token, Error::from_io(&error, "cannot wait for a connection"));
        }
    }

    /// Makes a connection for a call.
    fn open(&mut self, job: Job, at: SocketAddr) {
        let begun = self.pool.tls().and_then(|tls| Opening::begin(at, self.pool.limits.connect, tls));
        match begun {
            Ok(opening) => {
                let token = self.insert(Work::new(WorkState::Opening(Box::new(opening), job)));
                self.register(token);
            }
            Err(error) => self.not_opened(job, at, error),
        }
    }

    /// Sends a call on a connection.
    fn call(&mut self, mut job: Job, line: Line) {
        match self.head(&mut job) {
            Ok(head) => {
                let place = job.place.clone();
                let exchange = Box::new(Exchange::new(job, head));
                let token = self.insert(Work::new(WorkState::Call(exchange, line)));
                place.set(Some((self.place.mailbox.clone(), token)));
                self.turn(token);
            }
            Err(error) => {
                self.pool.keep(line, self.pool.limits.keep);
                job.end(Err(error));
            }
        }
    }

    fn head(&self, job: &mut Job) -> Result<Vec<u8>> {
        job.head.take().map_or_else(|| self.pool.heads.head(&job.ask, &job.body), Ok)
    }

    /// A connection goes on.
    fn turn(&mut self, token: u64) {
        let (now, pool) = (Instant::now(), self.pool.clone());
        let Some(work) = self.table.get(token) else { return };
        if std::mem::take(&mut work.is_paused) {
            work.since = now;
        }
        match &mut work.state {
            WorkState::Opening(opening, _) => {
                let turn = opening.turn(&pool.site);
                self.opened(token, turn);
            }
            WorkState::Call(exchange, line) => {
                let before = exchange.progress();
                let (stream, input, keep) = (&mut line.stream, &mut line.input, pool.limits.keep);
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
        job.end(Err(not_reached(error, &self.pool.site, at)));
    }

    /// A call had its turn.
    fn served(&mut self, token: u64, turn: Turn) {
        match turn {
            Turn::Waits => self.register(token),
            Turn::GoesOn => self.ready.push(token),
            Turn::Paused => self.table.pause(token),
            Turn::Ended(result, keeps) => {
                self.used = Instant::now();
                let result = result.map_err(|error| {
                    let is_strange = error.message() == NO_HTTP;
                    of_server(error, &self.pool.site, is_strange)
                });
                let next =
                    keeps.filter(|_| self.is_quiet(token)).and_then(|_| self.pool.next_at_hand(&self.place));
                match next {
                    Some(job) => self.go_on(token, job, result),
                    None => self.ended(token, keeps, result),
                }
            }
            Turn::Unanswered(error) => self.unanswered(token, error),
        }
    }

    /// Whether nothing came behind the last reply: it would be taken for the next one.
    fn is_quiet(&mut self, token: u64) -> bool {
        match self.table.get(token).map(|work| &mut work.state) {
            Some(WorkState::Call(_, line)) => line.stream.is_quiet(),
            _ => false,
        }
    }

    /// The connection has no call any more.
    fn ended(&mut self, token: u64, keeps: Option<Duration>, result: Result<()>) {
        let Some(WorkState::Call(exchange, line)) = self.remove(token) else { return };
        match keeps {
            Some(time) => self.pool.keep(line, time),
            None => self.close(line),
        }
        exchange.job.end(result);
    }

    /// The connection has its next call at once.
    fn go_on(&mut self, token: u64, mut job: Job, result: Result<()>) {
        let head = match self.head(&mut job) {
            Ok(head) => head,
            Err(error) => {
                job.end(Err(error));
                return self.ended(token, Some(self.pool.limits.keep), result);
            }
        };
        let Some(work) = self.table.get(token) else { return };
        let WorkState::Call(exchange, line) = &mut work.state else { return };
        job.place.set(Some((self.place.mailbox.clone(), token)));
        let before = std::mem::replace(&mut **exchange, Exchange::new(job, head));
        (line.is_kept, work.since) = (true, Instant::now());
        self.pool.clock.asked(work.since);
        self.turn(token);
        before.job.end(result);
    }

    fn close(&self, line: Line) {
        let at = line.at;
        drop(line);
        self.pool.closed(at);
    }

    /// A connection was lost before a byte of the reply came. A kept one may have been closed when the call was sent.
    fn unanswered(&mut self, token: u64, error: Error) {
        let Some(WorkState::Call(exchange, line)) = self.remove(token) else { return };
        let was_kept = line.is_kept;
        self.close(line);
        let mut job = exchange.job;
        if was_kept && job.resent < MOST_RESENT && !job.ask.is_sent_once() {
            job.resent += 1;
            job.place.set(None);
            return self.pool.push_again(job);
        }
        job.end(Err(of_server(error, &self.pool.site, true)));
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

    /// Looks at the time limits, whether waiting is to stop, and at the load.
    fn check(&mut self) {
        let now = Instant::now();
        self.checked = now;
        self.pool.close_old(now);
        let is_stopped = is_stopped();
        if is_stopped {
            for job in self.pool.waiting(|job| job.is_impatient(now)) {
                job.end(Err(stopped()));
            }
        }
        for token in self.table.tokens() {
            // What a slow server sends is taken before it is many bytes.
            if self.table.get(token).is_some_and(|work| work.waits_for_batch() && now - work.since >= SLICE) {
                self.turn(token);
            }
            if let Err(error) = self.check_one(token, now, is_stopped) {
                self.fail(token, error);
            }
        }
    }

    /// Has other threads help where this one and all others are busy.
    fn ask_for_help(&mut self) {
        let Some(level) = self.load.look(Instant::now()) else { return };
        self.place.is_busy.store(level != LoadLevel::Light, Ordering::Relaxed);
        if let LoadLevel::WantsHelp(idle) = level
            && self.lines() > 1
        {
            // Without them, this thread goes on alone.
            let _ = (0..self.pool.wants_threads(idle)).try_for_each(|_| spawn(&self.pool));
        }
    }

    fn check_one(&mut self, token: u64, now: Instant, is_stopped: bool) -> Result<()> {
        let pool = self.pool.clone();
        let Some(work) = self.table.get(token) else { return Ok(()) };
        let limit = if work.is_server_at_work() { pool.limits.work } else { pool.limits.silence };
        if let WorkState::Opening(opening, _) = &work.state {
            opening.check(now)?;
        }
        if is_stopped && work.job().is_impatient(now) {
            return Err(stopped());
        }
        if work.is_paused {
            return Ok(());
        }
        pool.clock.waits(now);
        if now.saturating_duration_since(work.since) >= limit {
            let silent =
                Error::new(ErrorKind::Timeout, "the server is silent").with("server", pool.site.name());
            return Err(silent.with("seconds", limit.as_secs()));
        }
        Ok(())
    }

    /// The program closed the descriptors: all calls of this thread end, and later ones find new ones.
    fn start_over(&mut self) {
        for token in self.table.tokens() {
            self.fail(token, lost());
        }
        match self.table.start_over() {
            Ok(waker) => self.place.mailbox.replace(waker),
            // The next wait tries again.
            Err(_) => std::thread::sleep(SLICE),
        }
    }
}

impl Drop for Worker {
    /// Where a sink panics, its thread ends: other calls get another one.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        for token in self.table.tokens() {
            match self.table.remove(token) {
                Some(WorkState::Call(_, line)) => self.close(line),
                Some(WorkState::Opening(opening, _)) => self.pool.closed(opening.at()),
                None => {}
            }
        }
        if self.pool.lost_thread(&self.place)
            && let Err(error) = spawn(&self.pool)
        {
            self.pool.end_waiting(&error);
        }
    }
}

/// No address took a connection.
fn not_reached(error: Error, site: &Site, at: SocketAddr) -> Error {
    let is_unreachable = error.is_caused_by::<ServerUnreachable>() && error.hints().is_empty();
    let error = error.with("server", site.name());
    match site.proxy_name() {
        Some(proxy) if is_unreachable => error.with("proxy", proxy).hint(past(site)),
        _ if !is_unreachable => error,
        _ => {
            let test = format!("nc -vz {} {}", at.ip(), at.port());
            error.hint(format!("check AWS_ENDPOINT_URL, and that the server listens there: {test}"))
        }
    }
}

/// A call failed on its connection, perhaps because the server does not speak HTTP there.
fn of_server(error: Error, site: &Site, may_be_tls: bool) -> Error {
    let is_clear = !site.tls && may_be_tls;
    let error = error.with("server", site.name());
    match site.proxy_name() {
        Some(proxy) => error.with("proxy", proxy),
        None if is_clear => error.hint(format!(
            "where the port is one of TLS: export AWS_ENDPOINT_URL=https://{}:{}",
            site.host, site.port
        )),
        None => error,
    }
}

/// The error for descriptors of ours that the program closed.
fn lost() -> Error {
    Error::from_errno(libc::EBADF, "a descriptor of forebay's was closed by the program")
        .hint("close only your own descriptors: closefrom and close_range take those of libraries, too")
}
