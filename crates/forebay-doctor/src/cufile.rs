//! NVIDIA's libcufile: its path, its configuration, and whether it could register files here.

use forebay_config::cufile::{Key, Loaded, Settings};
use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::system::System;

/// libcufile's configuration as it would read it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CufileConfig {
    /// The file; none if there is none (then NVIDIA's built-in defaults hold).
    pub path: Option<String>,
    /// Why the file cannot be used.
    pub error: Option<String>,
    /// Option names as gdscheck prints them, with values.
    #[serde(serialize_with = "as_map")]
    pub values: Vec<(&'static str, String)>,
    /// Keys that libcufile ignores silently, and why.
    pub ignored: Vec<String>,
}

fn as_map<S: Serializer>(values: &[(&'static str, String)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(values.iter().map(|(key, value)| (key, value.trim())))
}

/// NVIDIA's library in the file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LibcufileFacts {
    /// Where the loader or a CUDA installation has it.
    pub path: String,
    /// As `1.15.1`, from the file's name.
    pub version: Option<String>,
}

/// The options that gdscheck prints, in its order. Some of its names are older than the file's.
const ROWS: &[&str] = &[
    "properties.use_pci_p2pdma",
    "properties.use_compat_mode",
    "properties.force_compat_mode",
    "properties.gds_rdma_write_support",
    "properties.use_poll_mode",
    "properties.poll_mode_max_size_kb",
    "properties.max_batch_io_size",
    "properties.max_batch_io_timeout_msecs",
    "properties.max_direct_io_size_kb",
    "properties.max_device_cache_size_kb",
    "properties.max_device_pinned_mem_size_kb",
    "properties.posix_pool_slab_size_kb",
    "properties.posix_pool_slab_count",
    "properties.rdma_peer_affinity_policy",
    "properties.rdma_dynamic_routing",
    "fs.generic.posix_unaligned_writes",
    "fs.lustre.posix_gds_min_kb",
    "fs.beegfs.posix_gds_min_kb",
    "fs.weka.rdma_write_support",
    "fs.gpfs.gds_write_support",
    "fs.gpfs.gds_async_support",
    "profile.nvtx",
    "profile.cufile_stats",
    "miscellaneous.api_check_aggressive",
    "execution.max_io_threads",
    "execution.max_io_queue_depth",
    "execution.parallel_io",
    "execution.min_io_threshold_size_kb",
    "execution.max_request_parallelism",
    "properties.force_odirect_mode",
    "properties.prefer_iouring",
];

impl CufileConfig {
    /// Reads what libcufile would read: `CUFILE_ENV_PATH_JSON`, then /etc/cufile.json; the environment overrides.
    pub fn probe(system: &dyn System) -> Self {
        let loaded = Settings::load(
            |name| system.env(name),
            |path| {
                let bytes = system.read_plain(&path.to_string_lossy())?;
                Ok(String::from_utf8_lossy(&bytes).into_owned())
            },
        );
        let usual = Settings::default();
        Self {
            path: loaded.path.as_ref().map(|path| path.to_string_lossy().into_owned()),
            error: loaded.error.as_ref().map(ToString::to_string),
            values: ROWS.iter().map(|name| (*name, value(&loaded, &usual, name))).collect(),
            ignored: loaded.ignored,
        }
    }

    /// The value of an option.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.values.iter().find(|(key, _)| *key == name).map(|(_, value)| value.as_str())
    }
}

/// What gdscheck would print for an option. The file's value, even if the library would refuse it; without a file, the
/// value that forebay's libcufile uses (NVIDIA's gdscheck then prints other values for some options, which its library
/// does not use).
fn value(loaded: &Loaded, usual: &Settings, name: &str) -> String {
    let Some(key) = Key::at(name) else { return String::new() };
    show(name, loaded.given(key.name).unwrap_or(&usual.value(key)))
}

fn show(name: &str, value: &Value) -> String {
    match value {
        Value::Bool(flag) if name == "properties.rdma_dynamic_routing" => u8::from(*flag).to_string(),
        Value::String(text) => text.clone(),
        // gdscheck writes a blank after each item, the last one too.
        Value::Array(items) => items.iter().flat_map(|item| [item.to_string(), " ".to_owned()]).collect(),
        other => other.to_string(),
    }
}

/// Finds NVIDIA's library where the user says it is, or else where the loader or a CUDA installation has it.
pub fn library(system: &dyn System) -> Option<LibcufileFacts> {
    let paths = system.env("LD_LIBRARY_PATH").unwrap_or_default();
    let mut dirs: Vec<String> = paths.split(':').filter(|dir| !dir.is_empty()).map(str::to_owned).collect();
    let homes = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(|name| system.env(name));
    dirs.extend(homes.map(|home| format!("{home}/lib64")));
    let cuda = system.list("/usr/local").into_iter().filter(|name| name.starts_with("cuda"));
    dirs.extend(cuda.flat_map(|name| {
        [format!("/usr/local/{name}/lib64"), format!("/usr/local/{name}/targets/x86_64-linux/lib")]
    }));
    dirs.extend(["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/lib64"].map(str::to_owned));
    let named = system.env("FOREBAY_VENDOR_LIBCUFILE").filter(|path| !path.is_empty());
    let mut paths = named.into_iter().chain(dirs.iter().map(|dir| format!("{dir}/libcufile.so.0")));
    let path = paths.find(|path| system.exists(path))?;
    let real = system.resolve(&path).unwrap_or_else(|| path.clone());
    let version =
        real.rsplit_once(".so.").map(|(_, version)| version.to_owned()).filter(|version| version != "0");
    Some(LibcufileFacts { path, version })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(file: &str) -> impl Fn(&str) -> String {
        let loaded = Settings::load(
            |name| (name == "CUFILE_FORCE_COMPAT_MODE").then(|| "1".to_owned()),
            |_| Ok(file.to_owned()),
        );
        move |name| value(&loaded, &Settings::default(), name)
    }

    #[test]
    fn every_row_is_a_key() {
        for name in ROWS {
            assert!(Key::at(name).is_some(), "{name}");
        }
    }

    /// `docs/reference/cufile-json.md` is made from the same keys.
    #[test]
    fn without_a_file_the_documented_defaults_are_printed() {
        let loaded = Settings::load(|_| None, |_| Err(std::io::ErrorKind::NotFound.into()));
        for name in ROWS {
            let default = serde_json::from_str(Key::at(name).unwrap().default).unwrap();
            assert_eq!(value(&loaded, &Settings::default(), name), show(name, &default), "{name}");
        }
    }

    #[test]
    fn rows_have_what_gdscheck_prints() {
        let without = values("{}");
        assert_eq!(without("execution.max_io_threads"), "4");
        assert_eq!(without("properties.max_direct_io_size_kb"), "1024");
        assert_eq!(without("properties.posix_pool_slab_count"), "128 64 64 ");
        assert_eq!(without("properties.rdma_peer_affinity_policy"), "RoundRobin");
        assert_eq!(without("properties.rdma_dynamic_routing"), "0");
        assert_eq!(without("properties.force_compat_mode"), "true", "from the environment");
        let with = values(
            r#"{ "execution": { "max_io_threads": 99 },
                 "properties": { "io_batchsize": 7, "allow_compat_mode": false, "rdma_dynamic_routing": true,
                                 "posix_pool_slab_count": [1, 2] } }"#,
        );
        assert_eq!(with("execution.max_io_threads"), "99", "as the file says");
        assert_eq!(with("properties.max_batch_io_size"), "7");
        assert_eq!(with("properties.use_compat_mode"), "false");
        assert_eq!(with("properties.rdma_dynamic_routing"), "1");
        assert_eq!(with("properties.posix_pool_slab_count"), "1 2 ");
    }
}
