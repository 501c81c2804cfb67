//! Hooks for tests, and options in a name: `?state=none`, `?state=slow`, `?remove=slow`. A scheme needs none of it.

use std::thread::sleep;
use std::time::Duration;

use crate::{FILES, NewBytes, lock};

const SLOW: Duration = Duration::from_secs(1);

/// The bytes of a file as they are now; `None` where no file has this URL.
pub fn snapshot(url: &str) -> Option<Vec<u8>> {
    lock(&FILES).get(url).map(|file| lock(&file.now).0.clone())
}

/// Whether the source tells its states apart. One needs a second for it.
pub(crate) fn has_state(name: &str) -> bool {
    if name.ends_with("?state=slow") {
        sleep(SLOW);
    }
    !name.ends_with("?state=none")
}

impl Drop for NewBytes {
    fn drop(&mut self) {
        if self.0.name.ends_with("?remove=slow") {
            sleep(SLOW);
        }
    }
}
