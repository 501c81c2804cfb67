//! Runs the work of a row: each run is a process of its own.

mod bench;
mod hosts;
mod load;
mod server;

use std::ffi::OsString;

use crate::child::{Child, Ended};
use crate::model::{Run, Why};
use crate::order::{Extent, Order};
use crate::work::{Program, Work};
use crate::{peers, plan};
use load::Generator;
pub use load::load_machine;
use server::Server;

/// The outcome of a run.
#[derive(Debug)]
pub(crate) enum Outcome {
    Done(Box<Run>),
    Failed(Why),
    /// The program is missing: the row does not apply here.
    Absent(String),
    Stopped,
}

/// Shared by all runs.
pub(crate) struct Runner<'a> {
    executable: Vec<OsString>,
    python: OsString,
    server: Option<Server>,
    /// Whether rows run on other machines.
    has_hosts: bool,
    extent: Extent,
    generator: Option<Generator>,
    stopped: &'a dyn Fn() -> bool,
}

impl<'a> Runner<'a> {
    pub(crate) fn new(order: &Order, stopped: &'a dyn Fn() -> bool) -> Self {
        Self {
            executable: order.executable.clone(),
            python: order.python.clone(),
            server: order.server.as_deref().map(Server::new),
            has_hosts: !order.hosts.is_empty(),
            extent: order.extent,
            generator: None,
            stopped,
        }
    }

    /// Tries the file server, where there is one.
    pub(crate) fn check_server(&self) -> Result<(), Why> {
        self.server.as_ref().map_or(Ok(()), |server| server.check(self.stopped))
    }

    /// Runs it once, which takes about `takes` seconds, and measures the ceiling if `ceiling`.
    pub(crate) fn run(&mut self, work: &Work, ceiling: bool, takes: f64) -> Outcome {
        let mut child = match &work.run {
            Program::Bench(bench) => {
                let mut args = bench.args();
                // Measuring it would load the server.
                if ceiling && bench.has_ceiling(self.extent) && !(work.server && self.server.is_some()) {
                    args.push("--ceiling".to_owned());
                }
                args.extend(["--json".to_owned(), "/proc/self/fd/1".to_owned()]);
                let words = self.executable.iter().cloned().chain(args.into_iter().map(OsString::from));
                Child::new(words)
            }
            Program::Peer(peer) => peers::child(peer, &self.python),
            Program::Objects(row) => row.child(&self.executable),
        };
        child.cpu = work.cpu;
        child.partial = self.has_hosts.then_some(hosts::EXIT_SOME_FAILED);
        child.limit = plan::duration(120.0 + takes * 20.0);
        if let Err(why) = self.keep_load(work.load == Some(true)) {
            return Outcome::Failed(why);
        }
        let load = work.load.map(|_| load::before());
        let server = self.server.as_ref().filter(|_| work.server);
        let before = server.map(|server| server.before(self.stopped));
        let ended = child.run(self.stopped);
        if let Some(Err(why)) = self.generator.as_mut().map(Generator::check) {
            self.generator = None;
            return Outcome::Failed(why);
        }
        let text = match ended {
            Ended::Done { text } => text,
            Ended::Absent(reason) => return Outcome::Absent(reason),
            Ended::Failed(why) => return Outcome::Failed(why),
            Ended::Stopped => return Outcome::Stopped,
        };
        let parsed = match &work.run {
            Program::Bench(bench) if self.has_hosts => hosts::parse(&text, bench),
            Program::Bench(bench) => bench::parse(&text, bench),
            Program::Peer(peer) => peers::parse(&text, peer),
            Program::Objects(row) => row.parse(&text),
        };
        let mut run = match parsed {
            Ok(run) => run,
            Err(why) => return Outcome::Failed(why),
        };
        let by = self.generator.as_ref().map(Generator::name);
        run.load = load.map(|before| load::after(&before, by));
        if let Some((server, before)) = server.zip(before) {
            match server.since(before, run.seconds, self.stopped) {
                Ok(percent) => run.server_percent = Some(percent),
                Err(why) => run.notes.push(why),
            }
        }
        Outcome::Done(Box::new(run))
    }

    /// Starts or stops the load generator.
    fn keep_load(&mut self, wanted: bool) -> Result<(), Why> {
        if wanted && self.generator.is_none() {
            self.generator =
                Some(Generator::start(&self.executable, self.extent != Extent::Quick, self.stopped)?);
        } else if !wanted {
            self.generator = None;
        }
        Ok(())
    }
}
