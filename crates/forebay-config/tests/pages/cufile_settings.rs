//! `cufile.json` and `CUFILE_*`: values read, values refused, parameters that programs set by number.

use std::collections::HashMap;
use std::io;
use std::path::Path;

use forebay_config::cufile::{
    ArrayParameter, BoolParameter, Effect, KEYS, Key, Kind, Loaded, LogLevel, LogPlace, Pool, Settings,
    SizeParameter, StringParameter,
};

/// Reads with these variables and files.
fn load(variables: &[(&str, &str)], files: &[(&str, &str)]) -> Loaded {
    let variables: HashMap<_, _> = variables.iter().copied().collect();
    let files: HashMap<_, _> = files.iter().copied().collect();
    Settings::load(
        |name| variables.get(name).map(|&value| value.to_owned()),
        |path: &Path| {
            let text = files.get(path.to_str().unwrap());
            text.map(|&text| text.to_owned()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))
        },
    )
}

fn file(text: &str) -> Loaded {
    load(&[], &[("/etc/cufile.json", text)])
}

#[test]
fn without_a_file_the_measured_defaults_hold() {
    let loaded = load(&[], &[]);
    assert_eq!((loaded.path, loaded.error.is_none(), loaded.warnings), (None, true, vec![]));
    let settings = loaded.settings;
    assert_eq!(settings, Settings::default());
    let sizes: Vec<_> = (0..12).map(|number| settings.get_size(number).unwrap()).collect();
    assert_eq!(sizes, [0, 128, 4, 8192, 4, 1024, 131_072, 1024, 33_554_432, 128, 4, 5]);
    let on: Vec<_> = (0..14).filter(|&number| settings.get_bool(number).unwrap()).collect();
    assert_eq!(on, [1, 4, 6], "allow_compat_mode, parallel_io, allow_system_memory");
    assert_eq!(settings.slabs(Pool::Posix).sizes_kb, [4, 1024, 16384]);
    assert_eq!(settings.slabs(Pool::Posix).counts, [128, 64, 64]);
    assert_eq!(settings.slabs(Pool::GpuBounce).sizes_kb, [1024, 8192, 16384, 65536]);
    assert_eq!(settings.slabs(Pool::GpuBounce).counts, [128, 8, 4, 2]);
    assert_eq!((settings.log.level, settings.log.max_file_size_mb), (LogLevel::Error, Some(32)));
    assert_eq!(settings.log.place(), None);
    assert_eq!(settings.get_string(3).unwrap(), "DC_V1");
}

#[test]
fn ranges_are_the_measured_ones() {
    let ranges: Vec<_> = (0..12).map(Settings::min_max).collect();
    let range = |min, max| Some((min, max));
    assert_eq!(
        ranges,
        [
            None,
            range(1, 256),
            range(0, 32),
            range(4, 4_294_967_295),
            range(0, 8),
            range(64, 16384),
            range(0, 0),
            range(64, 16384),
            range(64, 0),
            range(1, 1 << 20),
            range(4, 18_014_398_509_481_980),
            range(1, 3_600_000),
        ]
    );
    assert_eq!(Settings::min_max(12), None);
}

#[test]
fn every_key_of_the_table_can_be_given() {
    for key in KEYS.iter().filter(|key| !key.default.is_empty()) {
        let name = key.name.replace("fs.*", "fs.lustre").replace("block.*", "block.nvme");
        let mut text = key.default.to_owned();
        for part in name.rsplit('.') {
            text = format!("{{\"{part}\": {text}}}");
        }
        let loaded = file(&text);
        assert_eq!(loaded.warnings, Vec::<String>::new(), "{text}");
        assert_eq!(loaded.settings, Settings::default(), "{text}");
        assert_eq!(loaded.settings.value(key).to_string(), key.default, "{}", key.name);
        assert!(loaded.given(key.name).is_some(), "{}", key.name);
    }
}

#[test]
fn every_parameter_has_one_key() {
    let names = KEYS.iter().filter_map(Key::parameter);
    let mut names: Vec<_> = names.chain([StringParameter::EnvLogfilePath.name()]).collect();
    let mut wanted: Vec<_> = SizeParameter::ALL.iter().map(|parameter| parameter.name()).collect();
    wanted.extend(BoolParameter::ALL.iter().map(|parameter| parameter.name()));
    wanted.extend(StringParameter::ALL.iter().map(|parameter| parameter.name()));
    wanted.extend(ArrayParameter::ALL.iter().map(|parameter| parameter.name()));
    names.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(names, wanted);
    for (number, parameter) in SizeParameter::ALL.iter().enumerate() {
        assert_eq!(parameter.number() as usize, number);
    }
    for (number, parameter) in BoolParameter::ALL.iter().enumerate() {
        assert_eq!(parameter.number() as usize, number);
    }
}

#[test]
fn the_table_is_in_order() {
    for (index, key) in KEYS.iter().enumerate() {
        assert!(KEYS[..index].iter().all(|other| other.name != key.name), "{} twice", key.name);
        let (Effect::Used(text) | Effect::Kept(text) | Effect::Ignored(text)) = key.effect;
        assert!(text.ends_with('.'), "{}", key.name);
        let first = Key::at(&key.name.replace("fs.*", "fs.nfs").replace("block.*", "block.raid")).unwrap();
        assert_eq!(first.name, key.name, "an earlier key hides it");
        for alias in key.aliases {
            assert_eq!(Key::at(alias).unwrap().name, key.name);
        }
        if let Kind::Number { min, max: Some(max) } = key.kind {
            assert!(i128::from(min) < i128::from(max), "{}", key.name);
        }
    }
}

#[test]
fn a_file_changes_what_it_names() {
    let loaded = file(
        r#"{
        // as shipped
        "logging": { "dir": "/var/log", "level": "info", "max_file_size_mb": -1 },
        "profile": { "cufile_stats": 3 },
        "properties": {
            "max_direct_io_size_kb": 16384, "io_batchsize": 100000, "use_poll_mode": 1, /* numbers are taken */
            "posix_pool_slab_size_kb": [8, 64], "posix_pool_slab_count": [2, 1],
            "gpu_bounce_buffer_slab_config": { "slab_size_kb": [4], "slab_count": [9] },
            "rdma_transport_type": "EXT_RC_V1", "forebay_strict_compat": true
        },
        "fs": { "generic": { "posix_unaligned_writes": true }, "nfs": { "mount_table": { "/mnt": {} } } },
        "denylist": { "mounts": ["/mnt"], "filesystems": ["nfs"], "devices": ["/dev/sda"], "drivers": ["sd"] }
        }"#,
    );
    assert_eq!(loaded.warnings, Vec::<String>::new());
    assert_eq!(loaded.path.unwrap(), Path::new("/etc/cufile.json"));
    let settings = loaded.settings;
    assert_eq!(settings.log.place(), Some(LogPlace::Folder("/var/log".into())));
    assert_eq!((settings.log.level, settings.log.max_file_size_mb), (LogLevel::Info, None));
    assert_eq!(settings.size(SizeParameter::ProfileStats), 3);
    assert_eq!(settings.size(SizeParameter::MaxDirectIoSizeKb), 16384);
    assert_eq!(settings.size(SizeParameter::IoBatchsize), 100_000);
    assert!(settings.flag(BoolParameter::UsePollMode));
    assert_eq!(settings.slabs(Pool::Posix).sizes_kb, [8, 64]);
    assert_eq!(settings.slabs(Pool::Posix).counts, [2, 1]);
    assert_eq!(settings.slabs(Pool::GpuBounce).counts, [9]);
    assert_eq!(settings.get_string(3).unwrap(), "EXT_RC_V1");
    assert!(settings.strict_compat && settings.posix_unaligned_writes);
    assert_eq!(settings.denylist.mounts, ["/mnt"]);
    assert_eq!(settings.denylist.filesystems, ["nfs"]);
    assert_eq!(settings.denylist.devices, ["/dev/sda"]);
    assert_eq!(settings.denylist.drivers, ["sd"]);
}

#[test]
fn the_variable_names_the_file() {
    let files = [("/etc/cufile.json", r#"{"execution": {"max_io_threads": 1}}"#), ("/mine", "{}")];
    let threads = |loaded: &Loaded| loaded.settings.size(SizeParameter::MaxIoThreads);
    let mine = load(&[("CUFILE_ENV_PATH_JSON", "/mine")], &files);
    assert_eq!((threads(&mine), mine.path.unwrap().to_str()), (4, Some("/mine")));
    let etc = load(&[("CUFILE_ENV_PATH_JSON", "")], &files);
    assert_eq!((threads(&etc), etc.path.unwrap().to_str()), (1, Some("/etc/cufile.json")));
}

#[test]
fn a_file_that_cannot_be_read_leaves_the_defaults_and_says_so() {
    let etc = ("/etc/cufile.json", r#"{"execution": {"max_io_threads": 1}}"#);
    let named = [("CUFILE_ENV_PATH_JSON", "/mine"), ("CUFILE_LOGGING_LEVEL", "TRACE")];
    let missing = load(&named, &[etc]);
    assert_eq!(
        missing.warnings,
        ["cannot read cufile.json: No such file or directory (path=/mine); the defaults are used"]
    );
    let malformed = load(&named, &[etc, ("/mine", "{ oops }")]);
    assert!(malformed.warnings[0].starts_with("cannot read cufile.json: not JSON: "), "{malformed:?}");
    for loaded in [missing, malformed] {
        assert!(loaded.error.is_some());
        assert_eq!(loaded.path.unwrap(), Path::new("/mine"));
        assert_eq!(loaded.settings.size(SizeParameter::MaxIoThreads), 4);
        assert_eq!(loaded.settings.log.level, LogLevel::Trace, "the environment holds all the same");
    }
    let forbidden = Settings::load(|_| None, |_| Err(io::Error::from_raw_os_error(libc::EACCES)));
    assert!(forbidden.error.is_some(), "a file that is there but cannot be read is not silent");
}

#[test]
fn the_environment_overrides_the_file() {
    let text = r#"{ "properties": { "allow_compat_mode": true, "force_compat_mode": true }, "logging": { "dir": "/d" } }"#;
    let variables = [
        ("CUFILE_ALLOW_COMPAT_MODE", "FALSE"),
        ("CUFILE_FORCE_COMPAT_MODE", "0"),
        ("CUFILE_USE_PCIP2PDMA", "1"),
        ("CUFILE_SKIP_TOPOLOGY_DETECTION", "true"),
        ("CUFILE_NVTX", ""),
        ("CUFILE_LOGGING_LEVEL", "debug"),
        ("CUFILE_LOGFILE_PATH", "/l/cufile.log"),
        ("CUFILE_LOGFILE_MAX_SIZE_MB", "100"),
        ("FOREBAY_CUFILE_STRICT_COMPAT", "1"),
    ];
    let loaded = load(&variables, &[("/etc/cufile.json", text)]);
    assert_eq!(loaded.warnings, Vec::<String>::new());
    let settings = &loaded.settings;
    let on: Vec<_> = (0..14).filter(|&number| settings.get_bool(number).unwrap()).collect();
    assert_eq!(on, [4, 6, 7, 10]);
    assert!(settings.refuses_to_open());
    assert_eq!(settings.log.place(), Some(LogPlace::File("/l/cufile.log".into())));
    assert_eq!((settings.log.level, settings.log.max_file_size_mb), (LogLevel::Debug, Some(100)));
    assert_eq!(loaded.given("properties.allow_compat_mode").unwrap(), false);
}

#[test]
fn variables_that_cannot_be_read_change_nothing() {
    let variables = [
        ("CUFILE_ALLOW_COMPAT_MODE", "maybe"),
        ("CUFILE_LOGGING_LEVEL", "loud"),
        ("CUFILE_LOGFILE_MAX_SIZE_MB", "0"),
    ];
    let loaded = load(&variables, &[]);
    assert_eq!(
        loaded.warnings,
        [
            "CUFILE_LOGGING_LEVEL: must be one of NOTICE, ERROR, WARN, INFO, DEBUG, TRACE, not \"loud\"; \"ERROR\" is used",
            "CUFILE_LOGFILE_MAX_SIZE_MB: 0 is out of range (-1, 1..4096); 32 is used",
            "CUFILE_ALLOW_COMPAT_MODE: must be true or false, not \"maybe\"; true is used",
        ]
    );
    assert_eq!(loaded.settings, Settings::default());
}

#[test]
fn wrong_values_are_named_with_what_is_used_instead() {
    let loaded = file(
        r#"{
        "execution": { "max_io_threads": 33, "max_io_queue_depth": "many", "parallel_io": "yes" },
        "properties": { "io_batchsize": 0, "max_direct_io_size_kb": 1e3, "posix_pool_slab_count": [1, 2],
                        "rdma_dev_addr_list": "10.0.0.1", "per_buffer_cache_size_kb": -4 },
        "denylist": { "mounts": [1] },
        "fs": true
        }"#,
    );
    assert_eq!(loaded.settings, Settings::default());
    let wanted = [
        "denylist.mounts: must be a list of texts in quotes, not [1]; [] is used",
        "execution.max_io_queue_depth: must be a whole number, not \"many\"; 128 is used",
        "execution.max_io_threads: 33 is out of range (0..32); 4 is used",
        "execution.parallel_io: must be true or false, not \"yes\"; true is used",
        "fs: must be a section in braces; ignored",
        "properties.io_batchsize: 0 is out of range (1..1048576); 128 is used",
        "properties.max_direct_io_size_kb: must be a whole number, not 1000.0; 1024 is used",
        "properties.per_buffer_cache_size_kb: -4 is out of range (64..16384); 1024 is used",
        "properties.rdma_dev_addr_list: must be a list of texts in quotes, not \"10.0.0.1\"; [] is used",
        "properties.posix_pool_slab_size_kb: needs as many counts as sizes, at least one; [4,1024,16384] is used",
    ];
    assert_eq!(loaded.warnings, wanted.map(|line| format!("/etc/cufile.json: {line}")));
    assert!(loaded.ignored.is_empty(), "they stand where they belong");
    assert_eq!(loaded.given("execution.max_io_threads").unwrap(), 33);
}

#[test]
fn keys_without_a_place_are_named_with_where_they_belong() {
    let loaded = file(
        r#"{
        "properties": { "max_io_threads": 8, "allow_compat_mode": true, "io_batch_size": 3 },
        "fs": { "block": { "nvme": { "use_pci_p2pdma": true } } },
        "propertys": { "io_batchsize": 1 },
        "io_batchsize": 3,
        "colour": 1,
        "blacklist": { "mounts": ["/old"] }
        }"#,
    );
    let wanted = [
        ("colour: no such section", "; ignored"),
        ("fs.block: \"block\" belongs on the top level, beside \"fs\"", "; ignored"),
        ("io_batchsize: belongs into \"properties\"", "; ignored, properties.io_batchsize is 128"),
        ("properties.io_batch_size: no such key; did you mean \"io_batchsize\"?", "; ignored"),
        ("properties.max_io_threads: belongs into \"execution\"", "; ignored, execution.max_io_threads is 4"),
        ("propertys: no such section; did you mean \"properties\"?", "; ignored"),
    ];
    assert_eq!(loaded.ignored, wanted.map(|(what, _)| what));
    assert_eq!(loaded.warnings, wanted.map(|(what, rest)| format!("/etc/cufile.json: {what}{rest}")));
    assert_eq!(loaded.settings.denylist.mounts, ["/old"]);
}

#[test]
fn an_older_name_gives_way_to_the_newer_one() {
    let both = r#"{ "properties": { "allow_compat_mode": true, "use_compat_mode": false } }"#;
    let loaded = file(both);
    assert!(loaded.settings.flag(BoolParameter::AllowCompatMode));
    assert_eq!(
        loaded.warnings,
        [
            "/etc/cufile.json: properties.use_compat_mode: an older name of properties.allow_compat_mode, which is \
          there too; true is used"
        ]
    );
    let alone = file(r#"{ "properties": { "force_compat_mode": true, "use_compat_mode": false } }"#);
    assert!(!alone.settings.flag(BoolParameter::AllowCompatMode));
    assert!(alone.warnings.is_empty(), "{:?}", alone.warnings);
}

#[test]
fn a_comma_too_many_is_taken_with_a_warning() {
    let loaded = file("{ \"execution\": {\n \"max_io_threads\": 8, // more\n } }");
    assert_eq!(loaded.settings.size(SizeParameter::MaxIoThreads), 8);
    assert_eq!(loaded.warnings, ["/etc/cufile.json: line 2: a comma that nothing follows; used anyway"]);
}

#[test]
fn forbidding_compat_mode_warns_and_only_strict_refuses() {
    let with = |variables: &[(&str, &str)]| {
        let loaded = load(variables, &[]);
        (loaded.settings.refuses_to_open(), loaded.warnings.len())
    };
    let forbid = ("CUFILE_ALLOW_COMPAT_MODE", "0");
    let strict = ("FOREBAY_CUFILE_STRICT_COMPAT", "1");
    assert_eq!(with(&[forbid]), (false, 1));
    assert_eq!(with(&[forbid, strict]), (true, 0));
    assert_eq!(with(&[strict]), (false, 0));
    assert_eq!(with(&[forbid, strict, ("CUFILE_FORCE_COMPAT_MODE", "1")]), (false, 0));
    let json = r#"{ "properties": { "allow_compat_mode": false, "forebay_strict_compat": true } }"#;
    assert!(file(json).settings.refuses_to_open());
}

#[test]
fn numbers_set_by_a_program_are_read_back() {
    let mut settings = Settings::default();
    for parameter in SizeParameter::ALL.iter().map(|parameter| parameter.number()) {
        let (min, max) = Settings::min_max(parameter).unwrap_or((0, 3));
        let greatest = if max == 0 { u64::MAX } else { max };
        for value in [min, greatest] {
            settings.set_size(parameter, value).unwrap();
            assert_eq!(settings.get_size(parameter), Some(value));
        }
        let outside = [min.checked_sub(1), greatest.checked_add(1)];
        for value in outside.into_iter().flatten() {
            let error = settings.set_size(parameter, value).unwrap_err();
            assert!(error.to_string().contains("out of range"), "{error}");
            assert_eq!(settings.get_size(parameter), Some(greatest));
        }
    }
    assert_eq!(settings.get_size(12), None);
    assert!(settings.set_size(12, 1).is_err());
}

#[test]
fn flags_set_by_a_program_are_read_back() {
    let mut settings = Settings::default();
    for parameter in 0..14 {
        let value = !settings.get_bool(parameter).unwrap();
        settings.set_bool(parameter, value).unwrap();
        assert_eq!(settings.get_bool(parameter), Some(value));
    }
    assert_eq!(settings.get_bool(14), None);
    assert!(settings.set_bool(14, true).is_err());
}

#[test]
fn texts_set_by_a_program_are_read_back() {
    let mut settings = Settings::default();
    for (parameter, usual, text) in [
        (0, Some("ERROR"), "INFO"),
        (1, None, "/t/c.log"),
        (2, Some(""), "/t"),
        (3, Some("DC_V1"), "EXT_RC_V1"),
    ] {
        assert_eq!(settings.get_string(parameter).as_deref(), usual);
        settings.set_string(parameter, text).unwrap();
        assert_eq!(settings.get_string(parameter).as_deref(), Some(text));
    }
    for parameter in [0, 3, 4] {
        assert!(settings.set_string(parameter, "no such word").is_err());
    }
    assert_eq!(settings.get_string(4), None);
    // Programs read it first and set it back later, even where it is empty.
    let mut empty = load(&[("CUFILE_LOGFILE_PATH", "")], &[]).settings;
    assert_eq!(empty.get_string(1).as_deref(), Some(""));
    empty.set_string(1, "").unwrap();
    assert_eq!(empty.log.place(), None);
}

#[test]
fn slabs_are_pairs_of_ascending_lists() {
    let mut settings = Settings::default();
    for pool in [Pool::Posix, Pool::GpuBounce] {
        settings.set_slabs(pool, &[4, 8, 4096], &[10, 1, 3]).unwrap();
        for (sizes, counts) in [
            (&[4, 8][..], &[1][..]),
            (&[], &[]),
            (&[8, 4], &[1, 1]),
            (&[4, 4], &[1, 1]),
            (&[0, 4], &[1, 1]),
            (&[4, 8], &[1, 0]),
        ] {
            assert!(settings.set_slabs(pool, sizes, counts).is_err(), "{sizes:?} {counts:?}");
        }
        assert_eq!(settings.slabs(pool).sizes_kb, [4, 8, 4096]);
        assert_eq!(settings.slabs(pool).counts, [10, 1, 3]);
    }
}

#[test]
fn levels_are_ordered_by_how_much_they_say() {
    assert!(LogLevel::Notice < LogLevel::Error && LogLevel::Error < LogLevel::Warn);
    assert!(LogLevel::Info < LogLevel::Debug && LogLevel::Debug < LogLevel::Trace);
    assert_eq!("warn".parse::<LogLevel>().unwrap(), LogLevel::Warn);
    assert!(!"".parse::<LogLevel>().unwrap_err().hints().is_empty());
}
