//! Loads of a model by libraries of Python, each in a process of its own.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt;

use serde::Deserialize;

use crate::child::Child;
use crate::made::Content;
use crate::model::{Run, Share, Why};
use crate::work::{Cache, Peer, typed};

/// Exit code of the script where the library is not installed.
const EXIT_MISSING: i32 = 3;
/// Name and text of what loads models or reads files, and of what reads an epoch.
const SCRIPTS: [(&str, &str); 2] =
    [("peers.py", include_str!("peers.py")), ("monai_epoch.py", include_str!("monai_epoch.py"))];
/// kvikio reads like the other rows: 8 threads, 4 MiB.
pub(crate) const VARIABLES: [(&str, &str); 2] = [("KVIKIO_NTHREADS", "8"), ("KVIKIO_TASK_SIZE", "4194304")];
/// Bytes of each tensor of the model.
const TENSOR_BYTES: u64 = 32 << 20;
/// Longest header that is read: those written here are far shorter.
const MAX_HEADER: u64 = 64 << 20;

#[derive(Deserialize)]
struct Load {
    seconds: f64,
    bytes: u64,
    user_s: f64,
    system_s: f64,
    engine: String,
    cache: String,
}

fn script(peer: &Peer) -> (&'static str, &'static str) {
    SCRIPTS[usize::from(peer.name.starts_with("monai-"))]
}

/// The script's parameters.
fn args(peer: &Peer) -> [OsString; 5] {
    let cache = if peer.cache == Cache::Warm { "warm" } else { "cold" };
    let file = peer.file.file.clone().into_os_string();
    [peer.name.clone().into(), file, peer.device.clone().into(), cache.into(), peer.load.to_string().into()]
}

/// The command line that repeats it, with the script as a file.
pub(crate) fn command(peer: &Peer) -> String {
    let args = args(peer).map(|word| word.to_string_lossy().into_owned());
    let variables = VARIABLES.map(|(name, value)| format!("{name}={value}")).join(" ");
    format!("{variables} python3 {} {}", script(peer).0, typed(&args))
}

/// The process that loads.
pub(crate) fn child(peer: &Peer, python: &OsStr) -> Child {
    let words = [python.to_owned(), "-c".into(), script(peer).1.into()].into_iter().chain(args(peer));
    let mut child = Child::new(words);
    child.absent = Some(EXIT_MISSING);
    for (name, value) in VARIABLES {
        child.env(name, value);
    }
    child
}

/// The load that counts: the script's last line.
pub(crate) fn parse(text: &str, peer: &Peer) -> std::result::Result<Run, Why> {
    let line = text.lines().last().unwrap_or_default();
    let load: Load = serde_json::from_str(line).map_err(|error| Why {
        text: format!("the load by {} gave nothing that can be read: {error}", peer.name),
        hint: None,
    })?;
    Ok(Run {
        seconds: load.seconds,
        bytes: load.bytes,
        ops: 1,
        mean_us: load.seconds * 1e6,
        p50_us: Some(load.seconds * 1e6),
        p99_us: load.seconds * 1e6,
        p999_us: Some(load.seconds * 1e6),
        user_s: load.user_s,
        system_s: load.system_s,
        cache: load.cache,
        engines: vec![Share { engine: load.engine, bytes: load.bytes, ways: [].into() }],
        ..Run::default()
    })
}

/// A model of about this size: a header, and tensors of 32 MiB.
pub(crate) struct Model {
    header: String,
    count: u64,
}

impl Model {
    pub(crate) fn new(size: u64) -> Self {
        let count = (size / TENSOR_BYTES).max(1);
        Self { header: header(count), count }
    }
}

impl Content for Model {
    fn name(&self) -> &'static str {
        "model to load"
    }

    fn len(&self) -> u64 {
        8 + self.header.len() as u64 + self.count * TENSOR_BYTES
    }

    fn fills(&self, file: &File) -> bool {
        let read = || -> std::io::Result<bool> {
            let mut len = [0; 8];
            file.read_exact_at(&mut len, 0)?;
            let len = u64::from_le_bytes(len);
            if len > MAX_HEADER {
                return Ok(false);
            }
            let mut text = vec![0; len as usize];
            file.read_exact_at(&mut text, 8)?;
            let text = String::from_utf8_lossy(&text);
            Ok(text == header(text.matches("\"layer.").count() as u64))
        };
        read().unwrap_or(false)
    }

    fn write(&self, file: &mut File, stopped: &dyn Fn() -> bool) -> std::io::Result<bool> {
        let mut head = (self.header.len() as u64).to_le_bytes().to_vec();
        head.extend_from_slice(self.header.as_bytes());
        file.write_all(&head)?;
        let mut block = vec![0; TENSOR_BYTES as usize];
        for index in 0..self.count {
            if stopped() {
                return Ok(false);
            }
            forebay_gpu::fill_pattern(&mut block, 7, index * TENSOR_BYTES);
            file.write_all(&block)?;
        }
        Ok(true)
    }
}

fn header(count: u64) -> String {
    let mut header = String::from("{");
    for index in 0..count {
        let comma = if index == 0 { "" } else { "," };
        let (start, end) = (index * TENSOR_BYTES, (index + 1) * TENSOR_BYTES);
        let _ = write!(
            header,
            r#"{comma}"layer.{index}.weight":{{"dtype":"F16","shape":[4096,4096],"data_offsets":[{start},{end}]}}"#
        );
    }
    header.push('}');
    header += &" ".repeat(header.len().next_multiple_of(8) - header.len());
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_known_again_and_its_making_stops() -> std::io::Result<()> {
        let model = Model::new(0);
        let mut file = tempfile::tempfile()?;
        assert!(!model.write(&mut file, &|| true)?);
        assert!(file.metadata()?.len() < TENSOR_BYTES);
        assert!(model.fills(&file) && Model::new(9 * TENSOR_BYTES).fills(&file));
        file.write_all_at(b"x", 12)?;
        assert!(!model.fills(&file));
        let mut whole = tempfile::tempfile()?;
        assert!(model.write(&mut whole, &|| false)?);
        assert_eq!(whole.metadata()?.len(), model.len());
        Ok(())
    }
}
