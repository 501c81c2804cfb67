//! The shared object from outside: its name, the libraries it needs, its exports.

use std::collections::BTreeSet;
use std::process::Command;

use crate::common::{library, run};

/// What 1.15 exports and programs may look up, with both names of closing.
const OF_1_15: &str = "
    cuFileHandleRegister cuFileHandleDeregister cuFileBufRegister cuFileBufDeregister cuFileRead cuFileWrite
    cuFileDriverOpen cuFileDriverClose cuFileDriverClose_v2 cuFileUseCount cuFileDriverGetProperties
    cuFileDriverSetPollMode cuFileDriverSetMaxDirectIOSize cuFileDriverSetMaxCacheSize
    cuFileDriverSetMaxPinnedMemSize cuFileGetVersion
    cuFileBatchIOSetUp cuFileBatchIOSubmit cuFileBatchIOGetStatus cuFileBatchIOCancel cuFileBatchIODestroy
    cuFileReadAsync cuFileWriteAsync cuFileStreamRegister cuFileStreamDeregister
    cuFileGetParameterSizeT cuFileGetParameterBool cuFileGetParameterString
    cuFileSetParameterSizeT cuFileSetParameterBool cuFileSetParameterString
    cuFileGetParameterMinMaxValue cuFileSetParameterPosixPoolSlabArray cuFileGetParameterPosixPoolSlabArray
    cuFileSetStatsLevel cuFileGetStatsLevel cuFileStatsStart cuFileStatsStop cuFileStatsReset
    cuFileGetStatsL1 cuFileGetStatsL2 cuFileGetStatsL3 cuFileGetBARSizeInKB";

/// What came later and costs nothing.
const LATER: &str = "
    cuFileReadv cuFileWritev cuFileDriverGetP2PFlags cuFileDriverSetP2PFlags cuFileExportPCIeTopology
    cuFileSetParameterGpuBounceBufferSlabArray cuFileGetParameterGpuBounceBufferSlabArray";

/// Ours: how objects of one process find its session.
const OURS: &str = "forebay_session_v1";

/// The names of all symbols that the object defines for others, with a version if they have one.
fn exported() -> BTreeSet<String> {
    let table = run(Command::new("readelf").args(["--dyn-syms", "-W"]).arg(library()));
    let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    // Num: Value Size Type Bind Vis Ndx Name
    let defined =
        rows.filter(|row| row.len() >= 8 && ["GLOBAL", "WEAK"].contains(&row[4]) && row[6] != "UND");
    defined.map(|row| row[7].to_owned()).collect()
}

#[test]
fn exactly_these_symbols_are_exported() {
    assert_eq!(OF_1_15.split_whitespace().count(), 43);
    let wanted: BTreeSet<String> =
        [OF_1_15, LATER, OURS].iter().flat_map(|list| list.split_whitespace()).map(str::to_owned).collect();
    let found = exported();
    let missing: Vec<_> = wanted.difference(&found).collect();
    let stray: Vec<_> = found.difference(&wanted).collect();
    assert!(missing.is_empty() && stray.is_empty(), "missing: {missing:?}\nstray: {stray:?}");
}

#[test]
fn no_symbol_has_a_version() {
    assert!(exported().iter().all(|name| !name.contains('@')));
    let versions = run(Command::new("readelf").args(["-V", "-W"]).arg(library()));
    assert!(!versions.contains("Version definition section"), "{versions}");
}

#[test]
fn the_object_has_the_name_and_the_flags_that_programs_count_on() {
    let dynamic = run(Command::new("readelf").args(["-d", "-W"]).arg(library()));
    assert!(dynamic.contains("Library soname: [libcufile.so.0]"), "{dynamic}");
    let flags = dynamic.lines().find(|line| line.contains("(FLAGS_1)")).unwrap_or_default();
    assert!(flags.contains("NODELETE"), "{dynamic}");
    assert!(!dynamic.contains("(RPATH)") && !dynamic.contains("(RUNPATH)"), "{dynamic}");
    assert!(!dynamic.contains("(TEXTREL)"), "{dynamic}");
}

#[test]
fn it_needs_the_c_library_only() {
    let dynamic = run(Command::new("readelf").args(["-d", "-W"]).arg(library()));
    let names = dynamic
        .lines()
        .filter(|line| line.contains("(NEEDED)"))
        .filter_map(|line| line.split(['[', ']']).nth(1));
    let of_c = ["libc.so", "libm.so", "libgcc_s.so", "libpthread.so", "libdl.so", "librt.so", "ld-linux"];
    for name in names {
        assert!(of_c.iter().any(|start| name.starts_with(start)), "needs {name}");
    }
}

/// Everything that the header declares is there: the declarations are found by their form.
#[test]
fn the_header_declares_what_is_exported() {
    let header = std::fs::read_to_string(format!("{}/include/cufile.h", crate::common::MANIFEST)).unwrap();
    let words = header.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '('));
    let declared: BTreeSet<String> = words
        .filter_map(|word| word.split_once('('))
        .map(|(name, _)| name.to_owned())
        .filter(|name| name.starts_with("cuFile"))
        .collect();
    let exported = exported();
    let wanted: BTreeSet<_> = exported.iter().filter(|name| name.starts_with("cuFile")).cloned().collect();
    assert_eq!(declared, wanted);
}
