//! The keys of `cufile.json`, and their look-up by place.

use serde_json::Value;

use super::parameters::{ArrayParameter, BoolParameter, SizeParameter, StringParameter};
use super::table::KEYS;
use crate::env::edit_distance;

/// A key of `cufile.json`.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Where it stands, as `properties.io_batchsize`. A `*` stands for any of [`FILE_SYSTEMS`] or [`BLOCK_DEVICES`], or
    /// at the end for any rest.
    pub name: &'static str,
    /// Other places that mean the same.
    pub aliases: &'static [&'static str],
    /// What values it takes.
    pub kind: Kind,
    /// The value without a file, as JSON; empty if there is none.
    pub default: &'static str,
    /// The value in the file that NVIDIA ships, where it differs.
    pub shipped: Option<&'static str>,
    /// The environment variable that overrides it.
    pub variable: Option<&'static str>,
    /// What forebay does with it.
    pub effect: Effect,
    pub(super) target: Target,
}

/// What values a key takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `true` or `false`; 1 and 0 are taken too.
    Flag,
    /// A whole number.
    Number {
        /// The least.
        min: i64,
        /// The greatest; `None` sets no limit.
        max: Option<u64>,
    },
    /// One of these words.
    Word(&'static [&'static str]),
    /// Any text.
    Text,
    /// A list of numbers.
    Numbers,
    /// A list of texts.
    Texts,
    /// Anything: forebay does not look into it.
    Any,
}

/// What forebay does with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The key does this.
    Used(&'static str),
    /// Programs can set the key and read it back. It changes nothing, for this reason.
    Kept(&'static str),
    /// The key changes nothing, for this reason.
    Ignored(&'static str),
}

/// Where a key's value goes in [`Settings`](super::Settings).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Size(SizeParameter),
    Flag(BoolParameter),
    Slabs(ArrayParameter),
    LogDir,
    LogLevel,
    LogMaxSize,
    RdmaTransport,
    UnalignedWrites,
    StrictCompat,
    DenyDrivers,
    DenyDevices,
    DenyMounts,
    DenyFilesystems,
    Nothing,
}

/// The file systems that have a section of their own in `fs`.
pub const FILE_SYSTEMS: &[&str] =
    &["lustre", "beegfs", "scatefs", "nfs", "gpfs", "weka", "panfs", "virtiofs"];

/// The devices that have a section of their own in `block`.
pub const BLOCK_DEVICES: &[&str] = &["nvme", "nvmeof", "raid", "raid1", "raid10"];

impl Key {
    pub(super) const fn new(name: &'static str, kind: Kind, default: &'static str, effect: Effect) -> Self {
        Self {
            name,
            aliases: &[],
            kind,
            default,
            shipped: None,
            variable: None,
            effect,
            target: Target::Nothing,
        }
    }

    pub(super) const fn aliases(mut self, aliases: &'static [&'static str]) -> Self {
        self.aliases = aliases;
        self
    }

    pub(super) const fn shipped(mut self, shipped: &'static str) -> Self {
        self.shipped = Some(shipped);
        self
    }

    pub(super) const fn variable(mut self, variable: &'static str) -> Self {
        self.variable = Some(variable);
        self
    }

    pub(super) const fn goes(mut self, target: Target) -> Self {
        self.target = target;
        self
    }

    /// The name of its parameter in the C interface, without the prefix `CUFILE_PARAM_`.
    pub fn parameter(&self) -> Option<&'static str> {
        match self.target {
            Target::Size(parameter) => Some(parameter.name()),
            Target::Flag(parameter) => Some(parameter.name()),
            Target::Slabs(parameter) => Some(parameter.name()),
            Target::LogLevel => Some(StringParameter::LoggingLevel.name()),
            Target::LogDir => Some(StringParameter::LogDir.name()),
            Target::RdmaTransport => Some(StringParameter::RdmaTransport.name()),
            _ => None,
        }
    }

    /// Whether the value of this place is this key's, under an older name.
    pub(super) fn has_alias(&self, path: &str) -> bool {
        self.aliases.contains(&path)
    }

    /// The key that stands in this place. Most have no star: a file's keys are looked for among those first.
    pub fn at(path: &str) -> Option<&'static Self> {
        let is_named = |key: &&Self| key.name == path || key.has_alias(path);
        let is_like = |key: &&Self| key.name.contains('*') && rest(key.name, path) == Some(0);
        KEYS.iter().find(is_named).or_else(|| KEYS.iter().find(is_like))
    }

    pub(super) fn of(target: Target) -> Option<&'static Self> {
        KEYS.iter().find(|key| key.target == target)
    }
}

/// A value that has its key's type and range.
pub(super) enum Typed {
    Flag(bool),
    Number(i128),
    Text(String),
    Numbers(Vec<u64>),
    Texts(Vec<String>),
    Any,
}

impl Kind {
    /// The value as the key's type, or what is wrong with it.
    pub(super) fn check(self, value: &Value) -> Result<Typed, String> {
        let wrong = |what: &str| Err(format!("must be {what}, not {value}"));
        match (self, value) {
            (Self::Flag, Value::Bool(flag)) => Ok(Typed::Flag(*flag)),
            (Self::Flag, Value::Number(number)) if matches!(number.as_u64(), Some(0 | 1)) => {
                Ok(Typed::Flag(number.as_u64() == Some(1)))
            }
            (Self::Flag, _) => wrong("true or false"),
            (Self::Number { min, max }, Value::Number(number)) => {
                let Some(number) = number.as_i128() else { return wrong("a whole number") };
                if number < i128::from(min) || max.is_some_and(|max| number > i128::from(max)) {
                    return Err(format!("{number} is out of range ({})", self.values()));
                }
                Ok(Typed::Number(number))
            }
            (Self::Number { .. }, _) => wrong("a whole number"),
            (Self::Word(words), Value::String(text)) => words
                .iter()
                .find(|word| word.eq_ignore_ascii_case(text))
                .map(|word| Typed::Text((*word).to_owned()))
                .ok_or_else(|| format!("must be one of {}, not {value}", words.join(", "))),
            (Self::Word(words), _) => wrong(&format!("one of {}", words.join(", "))),
            (Self::Text, Value::String(text)) => Ok(Typed::Text(text.clone())),
            (Self::Text, _) => wrong("a text in quotes"),
            (Self::Numbers, Value::Array(items)) => match items.iter().map(Value::as_u64).collect() {
                Some(numbers) => Ok(Typed::Numbers(numbers)),
                None => wrong("a list of whole numbers"),
            },
            (Self::Numbers, _) => wrong("a list of whole numbers"),
            (Self::Texts, Value::Array(items)) => {
                match items.iter().map(|item| item.as_str().map(str::to_owned)).collect() {
                    Some(texts) => Ok(Typed::Texts(texts)),
                    None => wrong("a list of texts in quotes"),
                }
            }
            (Self::Texts, _) => wrong("a list of texts in quotes"),
            (Self::Any, _) => Ok(Typed::Any),
        }
    }

    /// An environment variable's text as JSON would have it; a text that cannot be that stays a text.
    pub(super) fn read(self, text: &str) -> Value {
        let value = match (self, text.to_ascii_lowercase().as_str()) {
            (Self::Flag, "true" | "1") => Some(Value::Bool(true)),
            (Self::Flag, "false" | "0") => Some(Value::Bool(false)),
            (Self::Number { .. }, digits) => digits.parse::<i64>().map(Value::from).ok(),
            _ => None,
        };
        value.unwrap_or_else(|| Value::from(text))
    }

    /// The values in words.
    pub fn values(self) -> String {
        match self {
            Self::Flag => "true, false".to_owned(),
            Self::Number { min, max: Some(max) } => format!("{min}..{max}"),
            Self::Number { min, max: None } => format!("{min} or more"),
            Self::Word(words) => words.join(", "),
            Self::Text => "a text".to_owned(),
            Self::Numbers => "a list of numbers".to_owned(),
            Self::Texts => "a list of texts".to_owned(),
            Self::Any => "anything".to_owned(),
        }
    }
}

/// Whether `*` under this section stands for this name.
fn star(section: &str, name: &str) -> bool {
    match section {
        "fs" => FILE_SYSTEMS.contains(&name),
        "block" => BLOCK_DEVICES.contains(&name),
        _ => false,
    }
}

/// Whether the first parts of the pattern are those of the path, and how many more the pattern has.
fn rest(pattern: &str, path: &str) -> Option<usize> {
    let mut wanted = pattern.split('.');
    let mut section = "";
    for part in path.split('.') {
        let want = wanted.next()?;
        let same = match want.strip_suffix('*') {
            Some("") => star(section, part),
            Some(start) => part.starts_with(start),
            None => want == part,
        };
        if !same {
            return None;
        }
        section = part;
    }
    Some(wanted.count())
}

/// All places that keys have.
fn places() -> impl Iterator<Item = &'static str> {
    KEYS.iter().flat_map(|key| std::iter::once(key.name).chain(key.aliases.iter().copied()))
}

/// Whether keys stand below this place.
pub(super) fn is_section(path: &str) -> bool {
    places().any(|place| rest(place, path).is_some_and(|more| more > 0))
}

/// The names that may stand directly in a section (the empty one is the top), with their sections.
fn neighbours() -> impl Iterator<Item = (&'static str, &'static str)> {
    places().flat_map(|place| {
        let ends = place.match_indices('.').map(|(at, _)| at).chain([place.len()]);
        ends.map(move |end| place[..end].rsplit_once('.').unwrap_or(("", &place[..end])))
    })
}

/// The sections in which a name belongs.
fn homes(name: &str) -> Vec<&'static str> {
    let mut found = Vec::new();
    for (section, part) in neighbours() {
        let same = if part == "*" { star(section, name) } else { part == name };
        if same && !found.contains(&section) {
            found.push(section);
        }
    }
    found
}

/// Why nothing has its place here, and the one key that was probably meant.
pub(super) fn misplaced(path: &str) -> (String, Option<&'static Key>) {
    let (section, name) = path.rsplit_once('.').unwrap_or(("", path));
    let mut homes = homes(name);
    // Nothing should move to a section of older names if there is another.
    let old = |home: &&str| matches!(*home, "blacklist" | "sparse");
    if !homes.iter().all(old) {
        homes.retain(|home| !old(home));
    }
    if homes.contains(&"") {
        let beside = path.split('.').next().unwrap_or_default();
        return (format!("\"{name}\" belongs on the top level, beside \"{beside}\""), None);
    }
    if !homes.is_empty() {
        let quoted: Vec<_> = homes.iter().map(|home| format!("\"{home}\"")).collect();
        let key = if homes.len() == 1 { Key::at(&format!("{}.{name}", homes[0])) } else { None };
        return (format!("belongs into {}", quoted.join(" or ")), key);
    }
    let what = if section.is_empty() { "no such section" } else { "no such key" };
    let near = neighbours()
        .filter(|(home, part)| rest(home, section) == Some(0) && !part.contains('*'))
        .map(|(_, part)| (edit_distance(name, part), part))
        .min()
        .filter(|(distance, part)| *distance <= 1 + part.len() / 6);
    match near {
        Some((_, part)) => (format!("{what}; did you mean \"{part}\"?"), None),
        None => (what.to_owned(), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_found_with_their_stars() {
        assert_eq!(Key::at("properties.io_batchsize").unwrap().name, "properties.io_batchsize");
        assert_eq!(Key::at("properties.use_compat_mode").unwrap().name, "properties.allow_compat_mode");
        assert_eq!(Key::at("blacklist.mounts").unwrap().name, "denylist.mounts");
        assert_eq!(Key::at("fs.nfs.mount_table").unwrap().name, "fs.*.mount_table");
        assert_eq!(Key::at("properties.rdma_failback_enabled").unwrap().name, "properties.rdma_*");
        assert_eq!(Key::at("properties.rdma_peer_type").unwrap().name, "properties.rdma_peer_type");
        assert!(Key::at("fs.block.mount_table").is_none());
        assert!(Key::at("properties").is_none());
        assert!(is_section("properties") && is_section("fs.weka") && is_section("block.raid10"));
        assert!(!is_section("fs.block") && !is_section("properties.io_batchsize"));
    }

    #[test]
    fn what_has_no_place_is_told_where_it_belongs() {
        let told = |path| misplaced(path).0;
        assert_eq!(told("fs.block"), "\"block\" belongs on the top level, beside \"fs\"");
        assert_eq!(told("io_batchsize"), "belongs into \"properties\"");
        assert_eq!(told("properties.max_io_threads"), "belongs into \"execution\"");
        assert_eq!(told("nvme"), "belongs into \"block\"");
        assert_eq!(told("generic"), "belongs into \"fs\"");
        assert_eq!(told("properties.mounts"), "belongs into \"denylist\"");
        assert_eq!(
            told("properties.posix_gds_min_kb"),
            "belongs into \"fs.lustre\" or \"fs.beegfs\" or \"fs.scatefs\""
        );
        assert_eq!(told("propertys"), "no such section; did you mean \"properties\"?");
        assert_eq!(told("properties.io_batch_size"), "no such key; did you mean \"io_batchsize\"?");
        assert_eq!(told("properties.colour"), "no such key");
        assert_eq!(misplaced("properties.max_io_threads").1.unwrap().name, "execution.max_io_threads");
    }
}
