//! Pauses between attempts, and when they are over.

use std::time::{Duration, Instant};

use forebay_error::Result;

use crate::stop::sleep;

/// The first pause behind an attempt that the server answered with a refusal for the time being.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Pauses between attempts: each twice as long as the one before, up to 5 s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPauses {
    next: Duration,
}

impl RetryPauses {
    /// The first is this long.
    pub const fn from(first: Duration) -> Self {
        Self { next: first }
    }

    /// The pause before the next attempt.
    pub fn next_pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(LONGEST_PAUSE);
        pause
    }
}

impl Default for RetryPauses {
    fn default() -> Self {
        Self::from(FIRST_PAUSE)
    }
}

/// Attempts until a deadline, which begins with the first refusal.
#[derive(Debug)]
pub struct RetryBudget {
    deadline: Duration,
    began: Option<Instant>,
    pauses: RetryPauses,
}

impl RetryBudget {
    /// For so long.
    pub const fn new(deadline: Duration) -> Self {
        Self { deadline, began: None, pauses: RetryPauses::from(FIRST_PAUSE) }
    }

    /// Sleeps before the next attempt. False: there is none, the deadline is over. An error if waiting is to stop.
    pub fn wait(&mut self) -> Result<bool> {
        let began = *self.began.get_or_insert_with(Instant::now);
        if began.elapsed() > self.deadline {
            return Ok(false);
        }
        sleep(self.pauses.next_pause())?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_end_with_the_deadline() {
        let mut pauses = RetryPauses::from(Duration::from_secs(1));
        let four: Vec<_> = (0..4).map(|_| pauses.next_pause().as_secs()).collect();
        assert_eq!(four, [1, 2, 4, 5]);
        let mut budget = RetryBudget::new(Duration::from_millis(50));
        assert!(budget.wait().unwrap());
        assert!(!budget.wait().unwrap());
    }
}
