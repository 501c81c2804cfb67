//! NVIDIA's libcufile: where it is, what its configuration file says, whether it could register files here.

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
    /// Keys that libcufile ignores without a word, and why.
    pub ignored: Vec<String>,
}

fn as_map<S: Serializer>(values: &[(&'static str, String)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(values.iter().map(|(key, value)| (key, value.trim())))
}

/// NVIDIA's library in the file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Library {
    /// Where the loader or a CUDA installation has it.
    pub path: String,
    /// As `1.15.1`, from the file's name.
    pub version: Option<String>,
}

/// (name that gdscheck prints, where it stands in the file, environment variable, value without a file).
type Row = (&'static str, &'static [&'static str], Option<&'static str>, &'static str);

const ROWS: &[Row] = &[
    ("properties.use_pci_p2pdma", &["/properties/use_pci_p2pdma"], Some("CUFILE_USE_PCIP2PDMA"), "false"),
    (
        "properties.use_compat_mode",
        &["/properties/allow_compat_mode", "/properties/use_compat_mode"],
        Some("CUFILE_ALLOW_COMPAT_MODE"),
        "true",
    ),
    (
        "properties.force_compat_mode",
        &["/properties/force_compat_mode"],
        Some("CUFILE_FORCE_COMPAT_MODE"),
        "false",
    ),
    ("properties.gds_rdma_write_support", &["/properties/gds_rdma_write_support"], None, "true"),
    ("properties.use_poll_mode", &["/properties/use_poll_mode"], None, "false"),
    ("properties.poll_mode_max_size_kb", &["/properties/poll_mode_max_size_kb"], None, "4"),
    ("properties.max_batch_io_size", &["/properties/io_batchsize"], None, "128"),
    ("properties.max_batch_io_timeout_msecs", &["/properties/max_batch_io_timeout_msecs"], None, "5"),
    ("properties.max_direct_io_size_kb", &["/properties/max_direct_io_size_kb"], None, "1024"),
    ("properties.max_device_cache_size_kb", &["/properties/max_device_cache_size_kb"], None, "131072"),
    (
        "properties.max_device_pinned_mem_size_kb",
        &["/properties/max_device_pinned_mem_size_kb"],
        None,
        "18014398509481980",
    ),
    ("properties.posix_pool_slab_size_kb", &["/properties/posix_pool_slab_size_kb"], None, "4 1024 16384 "),
    ("properties.posix_pool_slab_count", &["/properties/posix_pool_slab_count"], None, "128 64 64 "),
    ("properties.rdma_peer_affinity_policy", &["/properties/rdma_peer_affinity_policy"], None, "RoundRobin"),
    ("properties.rdma_dynamic_routing", &["/properties/rdma_dynamic_routing"], None, "0"),
    ("fs.generic.posix_unaligned_writes", &["/fs/generic/posix_unaligned_writes"], None, "false"),
    ("fs.lustre.posix_gds_min_kb", &["/fs/lustre/posix_gds_min_kb"], None, "0"),
    ("fs.beegfs.posix_gds_min_kb", &["/fs/beegfs/posix_gds_min_kb"], None, "0"),
    ("fs.weka.rdma_write_support", &["/fs/weka/rdma_write_support"], None, "false"),
    ("fs.gpfs.gds_write_support", &["/fs/gpfs/gds_write_support"], None, "false"),
    ("fs.gpfs.gds_async_support", &["/fs/gpfs/gds_async_support"], None, "true"),
    ("profile.nvtx", &["/profile/nvtx"], Some("CUFILE_NVTX"), "false"),
    ("profile.cufile_stats", &["/profile/cufile_stats"], None, "0"),
    ("miscellaneous.api_check_aggressive", &["/miscellaneous/api_check_aggressive"], None, "false"),
    ("execution.max_io_threads", &["/execution/max_io_threads"], None, "0"),
    ("execution.max_io_queue_depth", &["/execution/max_io_queue_depth"], None, "128"),
    ("execution.parallel_io", &["/execution/parallel_io"], None, "false"),
    ("execution.min_io_threshold_size_kb", &["/execution/min_io_threshold_size_kb"], None, "1024"),
    ("execution.max_request_parallelism", &["/execution/max_request_parallelism"], None, "4"),
    ("properties.force_odirect_mode", &["/properties/force_odirect_mode"], None, "false"),
    ("properties.prefer_iouring", &["/properties/prefer_iouring"], None, "false"),
];

/// The sections of the file, with keys that belong into no other.
const SECTIONS: &[(&str, &[&str])] = &[
    ("logging", &["dir", "level", "max_file_size_mb"]),
    ("profile", &["nvtx", "cufile_stats"]),
    (
        "execution",
        &[
            "max_io_queue_depth",
            "max_io_threads",
            "parallel_io",
            "min_io_threshold_size_kb",
            "max_request_parallelism",
        ],
    ),
    (
        "properties",
        &[
            "max_direct_io_size_kb",
            "max_device_cache_size_kb",
            "per_buffer_cache_size_kb",
            "max_device_pinned_mem_size_kb",
            "use_poll_mode",
            "poll_mode_max_size_kb",
            "allow_compat_mode",
            "use_compat_mode",
            "force_compat_mode",
            "gds_rdma_write_support",
            "io_batchsize",
            "io_priority",
            "force_odirect_mode",
            "prefer_iouring",
            "posix_pool_slab_size_kb",
            "posix_pool_slab_count",
            "rdma_dev_addr_list",
            "rdma_load_balancing_policy",
        ],
    ),
    ("fs", &["generic", "lustre", "nfs", "gpfs", "weka", "beegfs"]),
    ("block", &["nvme", "nvmeof", "raid"]),
    ("denylist", &["filesystems", "mounts", "drivers", "devices"]),
    ("blacklist", &[]),
    ("sparse", &["p2p_compat_enable"]),
    ("miscellaneous", &["api_check_aggressive", "skip_topology_detection", "stream_memops_bypass"]),
];

impl CufileConfig {
    /// Reads what libcufile would read: `CUFILE_ENV_PATH_JSON`, then /etc/cufile.json; the environment overrides.
    pub fn probe(system: &dyn System) -> Self {
        let path = system
            .env("CUFILE_ENV_PATH_JSON")
            .or_else(|| Some("/etc/cufile.json".to_owned()).filter(|path| system.exists(path)));
        let mut config = Self { path, ..Self::default() };
        let mut file = Value::Null;
        if let Some(path) = &config.path {
            match system.read(path) {
                Err(error) => config.error = Some(format!("cannot read {path}: {error}")),
                Ok(bytes) => match serde_json::from_str(&strip_comments(&String::from_utf8_lossy(&bytes))) {
                    Ok(value) => file = value,
                    Err(error) => config.error = Some(format!("{path} is not JSON: {error}")),
                },
            }
        }
        config.values = ROWS
            .iter()
            .map(|(name, pointers, variable, default)| {
                let set = variable.and_then(|variable| system.env(variable)).map(|text| normal(&text));
                let in_file =
                    || pointers.iter().find_map(|pointer| file.pointer(pointer)).map(|v| show(name, v));
                (*name, set.or_else(in_file).unwrap_or_else(|| (*default).to_owned()))
            })
            .collect();
        config.ignored = ignored(&file);
        config
    }

    /// The value of an option.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.values.iter().find(|(key, _)| *key == name).map(|(_, value)| value.as_str())
    }
}

fn normal(text: &str) -> String {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" => "true".to_owned(),
        "0" | "false" => "false".to_owned(),
        _ => text.to_owned(),
    }
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

/// Blanks out `//` and `/* */` comments that stand outside of strings.
fn strip_comments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    let mut in_string = false;
    while let Some(c) = chars.next() {
        match (in_string, c, chars.peek()) {
            (true, '\\', _) => {
                out.push(c);
                out.extend(chars.next());
            }
            (_, '"', _) => {
                in_string = !in_string;
                out.push(c);
            }
            (false, '/', Some('/')) => while chars.next_if(|&c| c != '\n').is_some() {},
            (false, '/', Some('*')) => {
                chars.next();
                let mut last = ' ';
                for c in chars.by_ref() {
                    if last == '*' && c == '/' {
                        break;
                    }
                    if c == '\n' {
                        out.push(c);
                    }
                    last = c;
                }
                out.push(' ');
            }
            _ => out.push(c),
        }
    }
    out
}

fn ignored(file: &Value) -> Vec<String> {
    let Value::Object(top) = file else { return Vec::new() };
    let home = |key: &str| SECTIONS.iter().find(|(_, keys)| keys.contains(&key)).map(|(name, _)| *name);
    let is_section = |key: &str| SECTIONS.iter().any(|(name, _)| *name == key);
    let mut found = Vec::new();
    for (section, content) in top {
        if !is_section(section) {
            found.push(match home(section) {
                Some(right) => format!("{section}: belongs into \"{right}\""),
                None => format!("{section}: no such section"),
            });
        }
        let Value::Object(content) = content else { continue };
        for key in content.keys() {
            if is_section(key) {
                found.push(format!(
                    "{section}.{key}: \"{key}\" belongs on the top level, beside \"{section}\""
                ));
            } else if let Some(right) = home(key).filter(|right| right != section && is_section(section)) {
                // The deny list has the same keys under its two names.
                if !(right == "denylist" && section == "blacklist") {
                    found.push(format!("{section}.{key}: belongs into \"{right}\""));
                }
            }
        }
    }
    found
}

/// Finds NVIDIA's library where the loader or a CUDA installation has it.
pub fn library(system: &dyn System) -> Option<Library> {
    let paths = system.env("LD_LIBRARY_PATH").unwrap_or_default();
    let mut dirs: Vec<String> = paths.split(':').filter(|dir| !dir.is_empty()).map(str::to_owned).collect();
    let cuda = system.list("/usr/local").into_iter().filter(|name| name.starts_with("cuda"));
    dirs.extend(cuda.flat_map(|name| {
        [format!("/usr/local/{name}/lib64"), format!("/usr/local/{name}/targets/x86_64-linux/lib")]
    }));
    dirs.extend(["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/lib64"].map(str::to_owned));
    let path = dirs.iter().map(|dir| format!("{dir}/libcufile.so.0")).find(|path| system.exists(path))?;
    let real = system.resolve(&path).unwrap_or_else(|| path.clone());
    let version =
        real.rsplit_once(".so.").map(|(_, version)| version.to_owned()).filter(|version| version != "0");
    Some(Library { path, version })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_go_and_strings_stay() {
        let text = "{ // one\n \"dir\": \"http://x/*y*/\", /* two\n lines */ \"q\": \"a\\\"//b\" }";
        let value: Value = serde_json::from_str(&strip_comments(text)).unwrap();
        assert_eq!(value["dir"], "http://x/*y*/");
        assert_eq!(value["q"], "a\"//b");
        assert_eq!(strip_comments("/* never closed"), " ");
    }

    #[test]
    fn finds_keys_in_wrong_places() {
        let file = serde_json::json!({
            "properties": { "max_io_threads": 4, "allow_compat_mode": true },
            "fs": { "block": { "nvme": {} } },
            "propertys": {},
            "io_batchsize": 3,
            "blacklist": { "mounts": [] },
        });
        let mut found = ignored(&file);
        found.sort();
        assert_eq!(
            found,
            [
                "fs.block: \"block\" belongs on the top level, beside \"fs\"",
                "io_batchsize: belongs into \"properties\"",
                "properties.max_io_threads: belongs into \"execution\"",
                "propertys: no such section",
            ]
        );
        assert!(ignored(&Value::Null).is_empty());
    }
}
