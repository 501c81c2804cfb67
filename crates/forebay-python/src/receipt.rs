//! Receipts for Python.

use std::time::Duration;

use forebay_engine::{EngineKind, Moved, Receipt as One};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// What really happened to a transfer's bytes: which way they took, why not a better one, and how long it took.
#[pyclass(frozen, module = "forebay")]
pub(crate) struct Receipt {
    parts: Vec<One>,
    elapsed: Duration,
}

impl Receipt {
    /// The receipt of several transfers that ran together for `elapsed`.
    pub(crate) fn of(parts: Vec<One>, elapsed: Duration) -> Self {
        Self { parts, elapsed }
    }

    fn moved_by_way(&self) -> Moved {
        self.parts.iter().fold(Moved::default(), |sum, part| sum.plus(part.moved))
    }

    fn most(&self) -> Option<EngineKind> {
        let most = self.by_engine().first().map(|(engine, _)| *engine);
        most.or_else(|| self.parts.first().map(One::engine))
    }

    fn by_engine(&self) -> Vec<(EngineKind, u64)> {
        let mut engines: Vec<(EngineKind, u64)> = Vec::new();
        for (engine, bytes) in self.parts.iter().flat_map(One::engines) {
            match engines.iter_mut().find(|(known, _)| *known == engine) {
                Some((_, sum)) => *sum += bytes,
                None => engines.push((engine, bytes)),
            }
        }
        engines.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        engines
    }
}

#[pymethods]
impl Receipt {
    /// Bytes moved.
    #[getter]
    fn bytes(&self) -> u64 {
        self.moved_by_way().total()
    }

    /// The engine that moved most of them.
    #[getter]
    fn engine(&self) -> Option<&'static str> {
        self.most().map(EngineKind::name)
    }

    /// The mode that this engine worked in, if it has several: "compat", of "libcufile".
    #[getter]
    fn mode(&self) -> Option<&'static str> {
        let most = self.most();
        let elections = self.parts.iter().map(|part| &part.election);
        elections.filter(|election| Some(election.engine) == most).find_map(|election| election.mode)
    }

    /// Bytes by engine.
    #[getter]
    fn engines<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let engines = PyDict::new(py);
        for (engine, bytes) in self.by_engine() {
            engines.set_item(engine.name(), bytes)?;
        }
        Ok(engines)
    }

    /// Bytes by the way they took: "cached" (page cache), "direct" (O_DIRECT), "buffered" (cold, through the page cache),
    /// "requested" (a source without a file), "mapped" (read in place by the GPU), "peer" (from another GPU), "drive" (by the
    /// drive itself), "server" (by RDMA from the file's server). Ways that none took are left out.
    #[getter]
    fn moved<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let ways = PyDict::new(py);
        for (way, bytes) in self.moved_by_way().taken() {
            ways.set_item(way.name(), bytes)?;
        }
        Ok(ways)
    }

    /// Bytes, of all these, that the resident kernel copied to or from the GPU.
    #[getter]
    fn resident(&self) -> u64 {
        self.moved_by_way().resident
    }

    /// Wall time from the first submission to the last completion, in seconds.
    #[getter]
    fn seconds(&self) -> f64 {
        self.elapsed.as_secs_f64()
    }

    /// Better engines that were not used: (engine, reason, hint or None).
    #[getter]
    fn refused(&self) -> Vec<(&'static str, String, Option<String>)> {
        let mut refused = Vec::new();
        for refusal in self.parts.iter().flat_map(|part| &part.election.refused) {
            let told = (refusal.engine.name(), refusal.reason.clone(), refusal.hint.clone());
            if !refused.contains(&told) {
                refused.push(told);
            }
        }
        refused
    }

    /// What held the chosen engine back: (text, hint or None).
    #[getter]
    fn notes(&self) -> Vec<(String, Option<String>)> {
        let mut notes = Vec::new();
        for note in self.parts.iter().flat_map(|part| &part.election.notes) {
            let told = (note.text.clone(), note.hint.clone());
            if !notes.contains(&told) {
                notes.push(told);
            }
        }
        notes
    }

    fn __str__(&self) -> String {
        match self.parts.as_slice() {
            [one] => one.to_string(),
            parts => {
                let bytes = self.moved_by_way().total();
                let lines: Vec<_> = parts.iter().map(ToString::to_string).collect();
                format!(
                    "{bytes} bytes in {:.3} ms, {} parts:\n{}",
                    self.elapsed.as_secs_f64() * 1e3,
                    parts.len(),
                    lines.join("\n")
                )
            }
        }
    }

    fn __repr__(&self) -> String {
        let engine = self.engine().unwrap_or("nothing");
        let mode = self.mode().map(|mode| format!(" ({mode})")).unwrap_or_default();
        format!(
            "<forebay.Receipt: {} bytes by {engine}{mode} in {:.3} ms>",
            self.bytes(),
            self.seconds() * 1e3
        )
    }
}
