//! Each request to a source without a descriptor says how many bytes of the transfer directly follow it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{Target, pattern, session};
use forebay_config::{CachePolicy, IoBackend};
use forebay_engine::source::{Answer, Fill, MemorySource, Request, Requests, Source, StateToken};
use forebay_engine::{File, ReadPiece};
use forebay_error::Result;

const LEN: usize = 9_000_001;

/// Takes down the requests to another source: offset, bytes and bytes ahead of each.
#[derive(Debug)]
struct Noted {
    whole: MemorySource,
    asked: Mutex<Vec<(u64, u64, u64)>>,
}

impl Noted {
    /// Of the requests since the last call, in the order of their offsets.
    fn take(&self) -> Vec<(u64, u64, u64)> {
        let mut asked = std::mem::take(&mut *self.asked.lock().unwrap());
        asked.sort_unstable();
        asked
    }
}

impl Requests for Noted {
    fn start(&self, request: Request, done: Answer) {
        let asked = (request.offset, request.memory.len as u64, request.ahead);
        self.asked.lock().unwrap().push(asked);
        let Fill::Requests(whole) = self.whole.fill() else { panic!("it has no descriptor") };
        whole.start(request, done);
    }
}

impl Source for Noted {
    fn name(&self) -> String {
        "noted".to_owned()
    }

    fn len(&self) -> Result<u64> {
        self.whole.len()
    }

    fn fill(&self) -> Fill<'_> {
        Fill::Requests(self)
    }

    fn state(&self) -> Result<Option<StateToken>> {
        Ok(None)
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}

#[test]
fn requests_say_what_directly_follows_them() {
    let whole = MemorySource::new(pattern(7, 0, LEN), Duration::ZERO);
    let source = Arc::new(Noted { whole, asked: Mutex::default() });
    let file = File::from_source(source.clone()).unwrap();
    for target in [Target::Host, Target::Device] {
        let session = session(IoBackend::Auto, CachePolicy::Auto);
        let mut buffer = target.buffer(&session, LEN);
        session.read(&file, 0, &mut buffer).unwrap();
        let asked = source.take();
        assert!(asked.len() >= if target == Target::Host { 1 } else { 4 }, "{asked:?}");
        assert!(asked.iter().all(|(at, len, ahead)| at + len + ahead == LEN as u64), "{asked:?}");
        // Three in a row, a gap, and two more.
        let piece = |at: usize| ReadPiece {
            offset: at as u64 * 100_000 + if at > 2 { 1 << 20 } else { 0 },
            range: at * 100_000..(at + 1) * 100_000,
        };
        session.read_batch(&file, &[0, 1, 2, 3, 4].map(piece), buffer).unwrap().wait().result().unwrap();
        let asked = source.take();
        let ends = asked.iter().map(|(at, len, ahead)| at + len + ahead);
        let expected = asked.iter().map(|(at, ..)| if *at < 300_000 { 300_000 } else { 500_000 + (1 << 20) });
        assert!(ends.eq(expected), "{asked:?}");
    }
}
