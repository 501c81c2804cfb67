//! Pinned pages of a session: maps, probes, and the present number.

use std::sync::Arc;

use forebay_error::Result;
use forebay_gpu::Device;

use super::Session;
use crate::engines::mapped::{self, Map, PinReport};
use crate::request::file::File;
use crate::source::Descriptors;

impl Session {
    /// What this session has pinned for a device, and how much the process may pin.
    pub fn pins(&self, device: &Arc<dyn Device>) -> Result<PinReport> {
        Ok(self.engines_of(device)?.mapped.report())
    }

    /// Has `len` bytes of a file from `offset` on registered while nothing is copied, since they will be read to `device`
    /// again: then they are read in place, as far as they are in the page cache and the budget allows it. Waits for nothing.
    /// The file's handle has to stay open until then. The error says why none of it will be registered
    /// ([`ErrorKind::Unsupported`](forebay_error::ErrorKind::Unsupported)).
    pub fn pin_later(&self, file: &File, device: &Arc<dyn Device>, range: (u64, u64)) -> Result<()> {
        let engines = self.engines_of(device)?;
        engines.engine()?;
        engines.mapped.pin_later(file, range).map_err(|reason| reason.error().with("file", file.name()))
    }

    /// Unpins all pages that nothing uses now, and returns the bytes. Maps keep their pages.
    pub fn trim(&self) -> u64 {
        self.trim_of(None)
    }

    /// As [`Session::trim`], for one file.
    pub fn trim_file(&self, file: &File) -> u64 {
        let Some(file) = file.descriptors() else { return 0 };
        self.trim_of(Some(file))
    }

    fn trim_of(&self, file: Option<&Descriptors>) -> u64 {
        let Ok(inner) = self.native() else { return 0 };
        inner.per_device.used().map(|engines| engines.mapped.trim(file)).sum()
    }

    /// Makes a file readable in place by kernels of a device: see [`Map`].
    ///
    /// Reads its pages into the page cache, pins them, and counts them against the budget until the map is dropped.
    /// Waits for a file that has just changed ([`Config::pin_settle`](forebay_config::Config::pin_settle)). Errors: [`ErrorKind::Unsupported`](forebay_error::ErrorKind::Unsupported) with the
    /// reason and a hint where device, file system or budget do not allow it; [`ErrorKind::Busy`](forebay_error::ErrorKind::Busy) for a file that keeps
    /// changing.
    pub fn map(&self, file: &File, device: &Arc<dyn Device>) -> Result<Map> {
        let engines = self.engines_of(device)?;
        engines.engine()?;
        engines.mapped.map(file)
    }

    /// Whether `device` can read this file's pages in place: checks the rules, then registers and reads one page. The
    /// error says why not ([`ErrorKind::Unsupported`](forebay_error::ErrorKind::Unsupported)).
    pub fn probe_mapped(&self, file: &File, device: &Arc<dyn Device>) -> Result<()> {
        let refuse = |reason: mapped::Reason| reason.error().with("file", file.name());
        self.engines_of(device)?.engine()?;
        match file.descriptors() {
            Some(descriptors) => self.engines_of(device)?.mapped.probe(descriptors).map_err(refuse),
            None => Err(refuse(mapped::Reason::new("the source is not a file"))),
        }
    }
}
