//! Reads file and environment, and reports values that were not taken.

use std::io;
use std::path::{Path, PathBuf};

use forebay_error::Error;
use serde_json::{Map, Value};

use super::json;
use super::keys::{self, Key, Target};
use super::parameters::BoolParameter;
use super::settings::Interface;
use super::settings::{Log, Pool, Settings};
use super::table::KEYS;
use crate::{env, files};

/// The most bytes of a `cufile.json`.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The file that is read if [`PATH_VARIABLE`] names none.
pub const PATH: &str = "/etc/cufile.json";

/// The environment variable that names the file.
pub const PATH_VARIABLE: &str = "CUFILE_ENV_PATH_JSON";

/// What file and environment say.
#[derive(Clone, Debug, Default)]
pub struct Loaded {
    /// The values that hold.
    pub settings: Settings,
    /// Values that were not taken unchanged, a line each: the key, its place, the value used instead.
    pub warnings: Vec<String>,
    /// The file; `None` if there is none.
    pub path: Option<PathBuf>,
    /// Why the file could not be read. The defaults and the environment hold then.
    pub error: Option<Error>,
    /// Keys of the file that stand where nothing reads them, and why: those of the warnings that hold for any libcufile.
    pub ignored: Vec<String>,
    given: Vec<(&'static str, Value)>,
}

impl Loaded {
    /// What the environment, or else the file, says about a key, taken or not.
    pub fn given(&self, key: &str) -> Option<&Value> {
        self.given.iter().rev().find(|(name, _)| *name == key).map(|(_, value)| value)
    }
}

impl Settings {
    /// Reads the file and this process's environment.
    pub fn from_env() -> Loaded {
        let lookup = |name: &str| env::value(name).map(|value| value.to_string_lossy().into_owned());
        let mut loaded = Self::load(lookup, |path| files::read_plain(path, MAX_FILE_BYTES));
        if env::is_elevated() {
            // A log in a folder that everybody may write to is a way to any file.
            loaded.settings.log = Log { level: loaded.settings.log.level, ..Log::default() };
        }
        loaded
    }

    /// As [`Settings::from_env`] with any source of variables and files.
    pub fn load(
        lookup: impl Fn(&str) -> Option<String>,
        read: impl Fn(&Path) -> io::Result<String>,
    ) -> Loaded {
        let mut reader = Reader::default();
        let named = lookup(PATH_VARIABLE).filter(|path| !path.is_empty());
        let path = PathBuf::from(named.as_deref().unwrap_or(PATH));
        match read(&path) {
            Err(error) if named.is_none() && error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => reader.fail(path, &Error::from_io(&error, "cannot read cufile.json")),
            Ok(text) => match json::parse(&text) {
                Ok((file, commas)) => reader.file(path, &file, &commas),
                Err(error) => reader.fail(path, &error),
            },
        }
        reader.interface(lookup(Interface::VARIABLE));
        reader.environment(lookup);
        reader.finish()
    }
}

/// Something that was not taken as it stands.
struct Problem {
    /// The file and the key in it, or the variable.
    place: String,
    reason: String,
    rest: Instead,
}

/// What happens instead.
enum Instead {
    /// The key keeps the value that it had or got elsewhere.
    Value(&'static Key),
    /// Nothing, though this key was probably meant.
    Other(&'static Key),
    Ignored,
    Taken,
}

#[derive(Default)]
struct Reader {
    loaded: Loaded,
    problems: Vec<Problem>,
}

impl Reader {
    fn fail(&mut self, path: PathBuf, error: &Error) {
        let error = error.clone().with("path", path.display());
        self.loaded.warnings.push(format!("{error}; the defaults are used"));
        self.loaded.error = Some(error);
        self.loaded.path = Some(path);
    }

    fn interface(&mut self, named: Option<String>) {
        let Some(name) = named.filter(|name| !name.is_empty()) else { return };
        match Interface::named(&name) {
            Some(interface) => self.loaded.settings.interface = interface,
            None => self
                .loaded
                .warnings
                .push(format!("{}: must be 1.15 or 1.19, not {name}; 1.15 is used", Interface::VARIABLE)),
        }
    }

    fn file(&mut self, path: PathBuf, file: &Map<String, Value>, extra_commas: &[usize]) {
        for line in extra_commas {
            self.problems.push(Problem {
                place: format!("{}: line {line}", path.display()),
                reason: "a comma that nothing follows".to_owned(),
                rest: Instead::Taken,
            });
        }
        self.loaded.path = Some(path);
        self.section("", file, file);
        for (pool, key) in [
            (Pool::Posix, "properties.posix_pool_slab_size_kb"),
            (Pool::GpuBounce, "properties.gpu_bounce_buffer_slab_config.slab_size_kb"),
        ] {
            if let Err(reason) = self.loaded.settings.slabs(pool).check() {
                let usual = Settings::default().slabs(pool).clone();
                *self.loaded.settings.slabs_mut(pool) = usual;
                self.problem(key, reason, Key::at(key).map_or(Instead::Ignored, Instead::Value));
            }
        }
    }

    /// Something about a place in the file.
    fn problem(&mut self, place: &str, reason: impl Into<String>, rest: Instead) {
        let path = self.loaded.path.as_deref().unwrap_or(Path::new(PATH));
        let place = format!("{}: {place}", path.display());
        self.problems.push(Problem { place, reason: reason.into(), rest });
    }

    fn section(&mut self, path: &str, section: &Map<String, Value>, file: &Map<String, Value>) {
        for (name, value) in section {
            let place = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            if let Some(key) = Key::at(&place) {
                self.key(key, &place, value, file);
            } else if keys::is_section(&place) {
                match value {
                    Value::Object(content) => self.section(&place, content, file),
                    _ => self.problem(&place, "must be a section in braces", Instead::Ignored),
                }
            } else {
                let (reason, meant) = keys::misplaced(&place);
                self.loaded.ignored.push(format!("{place}: {reason}"));
                self.problem(&place, reason, meant.map_or(Instead::Ignored, Instead::Other));
            }
        }
    }

    fn key(&mut self, key: &'static Key, place: &str, value: &Value, file: &Map<String, Value>) {
        if key.has_alias(place) && at(file, key.name).is_some() {
            let reason = format!("an older name of {}, which is there too", key.name);
            return self.problem(place, reason, Instead::Value(key));
        }
        self.loaded.given.push((key.name, value.clone()));
        if let Err(reason) = self.loaded.settings.set(key, value) {
            self.problem(place, reason, Instead::Value(key));
        }
    }

    fn environment(&mut self, lookup: impl Fn(&str) -> Option<String>) {
        for (key, variable) in KEYS.iter().filter_map(|key| Some((key, key.variable?))) {
            let Some(text) = lookup(variable) else { continue };
            if key.target == Target::LogDir {
                // This variable names a file; programs read it back even if it is empty.
                self.loaded.settings.log.file = Some(text);
            } else if !text.is_empty() {
                let value = key.kind.read(&text);
                match self.loaded.settings.set(key, &value) {
                    Ok(()) => self.loaded.given.push((key.name, value)),
                    Err(reason) => {
                        let rest = Instead::Value(key);
                        self.problems.push(Problem { place: variable.to_owned(), reason, rest });
                    }
                }
            }
        }
    }

    fn finish(mut self) -> Loaded {
        let settings = &self.loaded.settings;
        self.loaded.warnings.extend(self.problems.iter().map(|Problem { place, reason, rest }| match rest {
            Instead::Value(key) => format!("{place}: {reason}; {} is used", settings.value(key)),
            Instead::Other(key) => {
                format!("{place}: {reason}; ignored, {} is {}", key.name, settings.value(key))
            }
            Instead::Ignored => format!("{place}: {reason}; ignored"),
            Instead::Taken => format!("{place}: {reason}; used anyway"),
        }));
        self.loaded.warnings.extend(settings.compat_warning());
        self.loaded
    }
}

impl Settings {
    /// What a user should know who forbids compat mode: forebay has no other, and goes on unless told to be strict.
    pub fn compat_warning(&self) -> Option<String> {
        let forbidden =
            !self.flag(BoolParameter::AllowCompatMode) && !self.flag(BoolParameter::ForceCompatMode);
        (forbidden && !self.strict_compat).then(|| {
            "properties.allow_compat_mode=false: forebay has only its own ways and serves files all the same; set \
             FOREBAY_CUFILE_STRICT_COMPAT=1 to have opening fail instead"
                .to_owned()
        })
    }
}

/// The value that stands in a place.
fn at<'a>(file: &'a Map<String, Value>, place: &str) -> Option<&'a Value> {
    let mut parts = place.split('.');
    let first = file.get(parts.next()?)?;
    parts.try_fold(first, |value, part| value.get(part))
}
