//! Which request comes next.

use forebay_gpu::pattern_word;

/// One request of the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// The requests of one thread: its part of the file in order, or random places of the whole.
#[derive(Clone, Debug)]
pub(crate) struct Cursor {
    part: (u64, u64),
    whole: u64,
    io: u64,
    random: bool,
    /// Begins again at the end of the part; another thread ends the pass.
    endless: bool,
    at: u64,
    drawn: u64,
    seed: u64,
}

impl Cursor {
    /// Divides `size` bytes among `threads`; `None` if there is too little for all of them.
    pub(crate) fn divide(size: u64, io: u64, threads: u64, random: bool) -> Option<Vec<Self>> {
        let share = size / threads / io * io;
        if share == 0 {
            return (threads == 1 && size > 0)
                .then(|| vec![Self::new((0, size), size, size.min(io), random, 0)]);
        }
        let end = |thread| if thread + 1 == threads { size } else { (thread + 1) * share };
        Some((0..threads).map(|n| Self::new((n * share, end(n)), size, io, random, n)).collect())
    }

    fn new(part: (u64, u64), whole: u64, io: u64, random: bool, seed: u64) -> Self {
        Self { part, whole, io, random, endless: false, at: part.0, drawn: 0, seed }
    }

    /// Begins a pass.
    pub(crate) fn start(&mut self, endless: bool) {
        self.endless = endless;
        self.at = self.part.0;
    }

    pub(crate) fn next(&mut self) -> Option<Request> {
        if self.at >= self.part.1 {
            if !self.endless {
                return None;
            }
            self.at = self.part.0;
        }
        let request = Request { offset: self.at, len: self.io.min(self.part.1 - self.at) };
        self.at += request.len;
        Some(if self.random { self.draw() } else { request })
    }

    fn draw(&mut self) -> Request {
        self.drawn += 1;
        let word = pattern_word(self.seed, self.drawn << 3);
        Request { offset: word % (self.whole / self.io) * self.io, len: self.io }
    }
}
