//! An object of which ranges are asked for.

use std::collections::HashMap;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};
use forebay_remote::process::ProcessId;
use forebay_remote::stop::{SLICE, is_stopped, stopped};
use forebay_source::{Answer, Request};

use super::call::RangeCall;
use super::first::FirstBytes;
use super::limits::{BURST, RANGE};
use super::places::Sites;
use super::plan::{NewRange, Plan, RangeId, RangeRoom};
use super::route::Route;
use super::sink::RangeSink;
use super::target::Target;
use crate::ObjectUrl;
use crate::calls::sites::PATIENCE;
use crate::calls::{Bucket, ObjectHead};
use crate::endpoint::Endpoint;
use crate::lock;
use crate::pace::{Paced, UnderWay, go_on_at};
use crate::wire::call::Body;

/// The requests to an object, and its ranges under way.
pub(crate) struct ObjectFetch {
    /// The last one is in use; ranges of those before may be under way.
    routes: Mutex<Routes>,
    /// The object that was opened.
    pub(super) target: Target,
    /// Where else its bytes may be.
    pub(super) sites: Option<Sites>,
    /// Replies in a row that were the whole object in place of a range.
    pub(super) wholes: AtomicU32,
    first: Arc<FirstBytes>,
    process: ProcessId,
    myself: Weak<Self>,
    state: Mutex<State>,
}

/// What the server says of an object now.
pub(crate) struct HeadNow {
    pub(crate) head: ObjectHead,
    /// The ETag by which it is read at the same site.
    pub(crate) ours: Option<String>,
    /// It was read at another site before.
    pub(crate) is_moved: bool,
}

/// Whether a server had no reply, or one without the bytes of the request.
fn is_of_server(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Io | ErrorKind::Timeout | ErrorKind::ShortRead | ErrorKind::Busy)
}

struct Routes {
    now: Arc<Route>,
    before: Vec<Arc<Route>>,
}

struct State {
    plan: Plan,
    calls: HashMap<RangeId, RangeCall>,
    /// As the endpoint has it.
    counted: UnderWay,
    /// When the clock has it go on.
    due: Option<Instant>,
    /// It waits for a turn.
    waits: bool,
}

impl State {
    /// Its ranges count at another endpoint.
    fn move_counts(&mut self, before: &Endpoint, now: &Endpoint) {
        before.turns.changed(self.counted, UnderWay::default());
        now.turns.changed(UnderWay::default(), self.counted);
        self.waits = false;
    }
}

impl std::fmt::Debug for ObjectFetch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ObjectFetch").field("target", &self.target).finish_non_exhaustive()
    }
}

impl ObjectFetch {
    /// One whose first bytes came already; there may be none.
    pub(crate) fn new(
        endpoint: Arc<Endpoint>,
        target: Target,
        first: Vec<u8>,
        sites: Option<Sites>,
    ) -> Arc<Self> {
        let plan = Plan::new(target.len);
        let (calls, counted) = (HashMap::new(), UnderWay::default());
        let state = Mutex::new(State { plan, calls, counted, due: None, waits: false });
        let process = ProcessId::current();
        let (wholes, first) = (AtomicU32::new(0), FirstBytes::keep(first));
        let now = Arc::new(Route::new(endpoint, target.clone()));
        let routes = Mutex::new(Routes { now, before: Vec::new() });
        Arc::new_cyclic(|myself| Self {
            routes,
            target,
            sites,
            wholes,
            first,
            process,
            myself: myself.clone(),
            state,
        })
    }

    /// Where ranges are asked for.
    pub(super) fn route(&self) -> Arc<Route> {
        lock(&self.routes).now.clone()
    }

    /// The endpoint of that.
    pub(crate) fn endpoint(&self) -> Arc<Endpoint> {
        self.route().endpoint().clone()
    }

    /// Where the object is read now, and its state there.
    pub(crate) fn at(&self) -> (Arc<Endpoint>, Target) {
        let route = self.route();
        (route.endpoint().clone(), route.target.clone())
    }

    /// Bytes came from there by another way than its ranges.
    pub(crate) fn came(&self, bytes: u64) {
        self.route().bytes.fetch_add(bytes, Relaxed);
    }

    /// The ETag of the object where it is read.
    pub(crate) fn etag(&self) -> Option<String> {
        self.route().target.etag.clone()
    }

    /// The head of the object that is there now.
    pub(crate) fn head(&self) -> Result<HeadNow> {
        let began = Instant::now();
        loop {
            let route = self.route();
            let Target { bucket, key, version, .. } = &route.target;
            let bucket = Bucket::of_endpoint(route.endpoint().clone(), bucket);
            let bucket = if self.sites.is_some() { bucket.hasty(PATIENCE) } else { bucket };
            match bucket.head_here(key, version.as_deref()) {
                Err(refusal) if refusal.is_gone && self.move_on(&route, &refusal.error, false)? => {}
                Err(refusal) if self.sites.is_some() && bucket.may_come_back(&refusal, began) => {}
                Err(refusal) => return Err(self.named(refusal.error)),
                Ok(head) => {
                    let (ours, is_moved) = (route.target.etag.clone(), !lock(&self.routes).before.is_empty());
                    return Ok(HeadNow { head, ours, is_moved });
                }
            }
        }
    }

    /// Bytes that came by site, in the order in which they were asked, where sites have names.
    pub(crate) fn bytes_by_site(&self) -> Vec<(String, u64)> {
        let mut all: Vec<(String, u64)> = Vec::new();
        let routes = lock(&self.routes);
        for route in routes.before.iter().chain([&routes.now]) {
            let Some(name) = route.endpoint().account.site_name() else { continue };
            let bytes = route.bytes.load(Relaxed);
            match all.iter_mut().find(|(known, _)| known == name) {
                Some((_, sum)) => *sum += bytes,
                None => all.push((name.to_owned(), bytes)),
            }
        }
        all
    }

    pub(super) fn myself(&self) -> Weak<Self> {
        self.myself.clone()
    }

    /// Does something with the plan; then what follows from it: answers, ranges that go on, counts.
    pub(super) fn with<T>(
        &self,
        act: impl FnOnce(&mut Plan) -> T,
        resumed: impl FnOnce(&T) -> &[RangeId],
    ) -> T {
        let mut state = lock(&self.state);
        let done = act(&mut state.plan);
        let calls: Vec<_> =
            resumed(&done).iter().filter_map(|id| state.calls.get_mut(id)?.resume()).collect();
        self.count(&mut state);
        let answers = state.plan.take_answers();
        drop(state);
        for call in calls {
            call.resume();
        }
        for (answer, result) in answers {
            answer(result.map_err(|error| self.named(error)));
        }
        done
    }

    fn count(&self, state: &mut State) {
        let now = state.plan.under_way();
        if now != state.counted {
            self.endpoint().turns.changed(state.counted, now);
            state.counted = now;
        }
    }

    /// The error with the object's URL, and with what other sites have.
    fn named(&self, error: Error) -> Error {
        let error = match &self.sites {
            Some(sites) if is_of_server(&error) => sites.explained(&self.route(), error),
            _ => error,
        };
        let has_url = error.context().iter().any(|(key, _)| *key == "url");
        if has_url {
            error
        } else {
            // Where other sites were asked too, it is none of one site.
            let site =
                self.endpoint().account.site_name().filter(|_| self.sites.is_none()).map(str::to_owned);
            error.with("url", ObjectUrl { site, ..self.target.url() })
        }
    }

    /// Starts a read.
    ///
    /// # Safety
    /// The request's memory is valid, and nobody else uses it, until the answer.
    pub(crate) unsafe fn start(&self, request: Request, answer: Answer) {
        if let Err(error) = self.process.check() {
            return answer(Err(self.named(error)));
        }
        // SAFETY: passed on.
        if let Some(bytes) = unsafe { self.first.fill(&request, self.target.len) } {
            self.route().bytes.fetch_add(bytes as u64, Relaxed);
            return answer(Ok(bytes));
        }
        self.look_back();
        // With the bytes that it promises it is a whole range.
        let known = (request.memory.len as u64).saturating_add(request.ahead);
        let is_whole = known >= RANGE.min(self.target.len);
        let now = Instant::now();
        let (_, has_todo) = self.with(
            |plan| {
                let resumed = plan.ask(request, answer, now);
                (resumed, plan.has_todo())
            },
            |(resumed, _)| resumed,
        );
        match has_todo {
            false => {}
            true if is_whole => self.begin_ranges(now),
            true => self.schedule(now + BURST),
        }
    }

    /// Has the clock look at it at this time, or before.
    pub(super) fn schedule(&self, time: Instant) {
        let mut state = lock(&self.state);
        if state.due.is_none_or(|due| time < due) {
            state.due = Some(time);
            drop(state);
            let myself: Weak<dyn Paced> = self.myself.clone();
            go_on_at(time, myself);
        }
    }

    /// Begins ranges as far as there are turns.
    fn begin_ranges(&self, now: Instant) {
        if is_stopped() {
            self.with(|plan| plan.fail_all(&stopped()), |()| &[]);
        }
        let pause = if self.is_looking() { Some(now + SLICE) } else { self.endpoint().budget.until(now) };
        if let Some(until) = pause {
            let has_todo = lock(&self.state).plan.has_todo();
            if has_todo {
                self.schedule(until.min(now + SLICE));
            }
            return;
        }
        while let Some(new) = self.next_range(now) {
            self.begin(new, now);
        }
    }

    fn next_range(&self, now: Instant) -> Option<NewRange> {
        let mut state = lock(&self.state);
        let endpoint = self.endpoint();
        let turns = &endpoint.turns;
        let mut new = None;
        if state.plan.has_todo() {
            let waits = std::mem::replace(&mut state.waits, false);
            let myself = || -> Weak<dyn Paced> { self.myself.clone() };
            if waits || !turns.has_turn(myself) {
                state.waits = true;
                return None;
            }
            new = state.plan.next_range();
        } else if turns.may_begin_ahead() {
            new = state.plan.next_ahead(now);
        }
        self.count(&mut state);
        new
    }

    fn begin(&self, new: NewRange, now: Instant) {
        let Some(object) = self.myself.upgrade() else { return };
        let call = RangeCall::new(now);
        let is_wanted = call.is_wanted.clone();
        lock(&self.state).calls.insert(new.id, call);
        let route = self.route();
        let ask = route.target.ask(Some((new.start, new.end)));
        let network = route.endpoint().network.clone();
        let call = network.start(ask, Body::None, Box::new(RangeSink::new(object, route, new, is_wanted)));
        let goes_on = lock(&self.state).calls.get_mut(&new.id).and_then(|begun| begun.started(call));
        if let Some(call) = goes_on {
            call.resume();
        }
        self.schedule(now + SLICE);
    }

    /// Ranges that take longer than nearly all others are asked for again, by other calls.
    fn ask_again(&self, now: Instant) {
        let endpoint = self.endpoint();
        let Some(slow) = endpoint.durations.slow() else { return };
        let mut state = lock(&self.state);
        let slow: Vec<_> = state
            .calls
            .iter()
            .filter(|(_, call)| call.gives_way(slow, now, || endpoint.durations.may_ask_again()))
            .map(|(id, _)| *id)
            .collect();
        let calls: Vec<_> = slow.iter().filter_map(|id| state.calls.get_mut(id)?.resume()).collect();
        drop(state);
        for call in calls {
            call.resume();
        }
    }

    /// Where the next bytes of a range go.
    pub(super) fn room(&self, id: RangeId) -> RangeRoom {
        let now = Instant::now();
        let (room, due) = self.with(
            |plan| {
                let room = plan.room(id, now);
                let due = if room == RangeRoom::Later { plan.overdue(now).1 } else { None };
                (room, due)
            },
            |_| &[],
        );
        if let Some(call) = lock(&self.state).calls.get_mut(&id) {
            call.asked(room != RangeRoom::Later, now);
        }
        if let Some(due) = due {
            self.schedule(due);
            // It gave its turn back.
            self.serve_waiting();
        }
        room
    }

    /// Bytes of a range came.
    pub(super) fn filled(&self, id: RangeId, bytes: u64) {
        self.with(|plan| plan.filled(id, bytes), |()| &[]);
    }

    /// A range has ended. Whether its error may pass is `retries`.
    pub(super) fn ended(&self, id: RangeId, result: &Result<()>, retries: bool) {
        let now = Instant::now();
        let came = self.with(
            |plan| {
                let came = plan.came(id);
                plan.ended(id, result, retries, now);
                came
            },
            |_| &[],
        );
        let call = lock(&self.state).calls.remove(&id);
        if result.is_ok() {
            if let Some(call) = call.filter(|call| call.is_wanted.load(Relaxed)) {
                self.endpoint().durations.note(call.took(now));
            }
            if let Some(limit) = self.endpoint().turns.ended(came, now) {
                self.endpoint().allow(limit);
            }
            self.begin_ranges(now);
        } else {
            // Not within the end of a call, which may be within its start.
            self.schedule(now);
        }
        self.serve_waiting();
    }

    /// Objects that wait for a turn go on.
    fn serve_waiting(&self) {
        Self::serve_waiting_of(&self.endpoint());
    }

    fn serve_waiting_of(endpoint: &Endpoint) {
        while let Some(waiting) = endpoint.turns.next() {
            waiting.go_on(None);
        }
    }

    /// The object is another one by now: all requests fail.
    pub(crate) fn fail_all(&self, error: &Error) {
        self.with(|plan| plan.fail_all(error), |()| &[]);
    }

    /// The server refuses requests for the time being.
    pub(super) fn refused(route: &Route, is_load: bool, pause: Option<Duration>) {
        let (now, endpoint) = (Instant::now(), route.endpoint());
        let is_new = endpoint.budget.refused(pause, now);
        if is_load && is_new {
            let limit = endpoint.turns.too_many(now);
            endpoint.allow(limit);
        }
    }

    /// The server said that the bucket is in another region, of a range that began then. Whether it may be asked for there: an object
    /// moves once, with all ranges that began before.
    pub(super) fn moves(&self, route: &Arc<Route>, region: &str, began: Instant) -> bool {
        let mut state = lock(&self.state);
        if let Some(moved) = route.moved() {
            return began < moved;
        }
        let before = route.endpoint().clone();
        let Some(now) = route.lead_to(region) else { return false };
        if Arc::ptr_eq(route, &self.route()) {
            state.move_counts(&before, now);
        }
        drop(state);
        Self::serve_waiting_of(&before);
        true
    }

    /// Ranges are asked for there from now on. Those under way may go on, or are asked for again where the site is gone.
    pub(super) fn go_to(&self, route: Arc<Route>, is_gone: bool) {
        let mut state = lock(&self.state);
        let before = self.endpoint();
        state.move_counts(&before, route.endpoint());
        let under_way = state.calls.values_mut().filter(|_| is_gone);
        let calls: Vec<_> = under_way.filter_map(RangeCall::give_up).collect();
        self.wholes.store(0, Relaxed);
        let mut routes = lock(&self.routes);
        let left = std::mem::replace(&mut routes.now, route);
        routes.before.push(left);
        drop(routes);
        drop(state);
        for call in calls {
            call.resume();
        }
        Self::serve_waiting_of(&before);
        self.schedule(Instant::now());
    }

    /// Whether it was not opened before this process was forked.
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.process.is_current()
    }

    /// Nobody has the object open any more: ranges that wait for requests end.
    pub(crate) fn close(&self) {
        if self.process.is_current() {
            self.with(Plan::close, |idle| idle);
        }
    }
}

impl Paced for ObjectFetch {
    fn go_on(self: Arc<Self>, time: Option<Instant>) {
        let now = Instant::now();
        {
            let mut state = lock(&self.state);
            match time {
                // An earlier time has taken its place.
                Some(_) if time != state.due => return,
                Some(_) => state.due = None,
                None => state.waits = false,
            }
        }
        let (_, next) = self.with(|plan| plan.overdue(now), |(over, _)| over);
        let next = next.or_else(|| (!lock(&self.state).calls.is_empty()).then(|| now + SLICE));
        if let Some(next) = next {
            self.schedule(next.min(now + SLICE));
        }
        self.ask_again(now);
        self.begin_ranges(now);
    }
}
