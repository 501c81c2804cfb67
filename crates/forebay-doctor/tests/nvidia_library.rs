//! The exercise where NVIDIA's library was asked for, over its test double.

use forebay_doctor::engines::State;
use forebay_doctor::exercise::Target;
use forebay_doctor::{Live, Options, Real, examine};

/// One test, because variables are the process's.
#[test]
fn nvidia_s_library_is_exercised_when_it_is_asked_for() {
    for installed in [fake_cuda::install().map(drop), fake_cufile::install().map(drop)] {
        if let Err(why) = installed {
            eprintln!("skipped: {why}");
            return;
        }
    }
    forebay_libcufile::register();
    // SAFETY: no other thread of this process reads the environment yet.
    unsafe { std::env::set_var("FOREBAY_ENGINE", "libcufile") };
    let dir = tempfile::tempdir().unwrap();
    let options = Options { paths: vec![dir.path().to_str().unwrap().to_owned()], ..Options::default() };
    let report = examine(&Real, &Live::open(), &options).unwrap_or_else(|error| panic!("{error:?}"));
    let of = |target: Target, engine: &str| {
        let mut all = report.verdicts.iter().filter(|verdict| verdict.target == target);
        all.find(|verdict| verdict.engine == engine).map(|verdict| verdict.state)
    };
    assert_eq!(of(Target::Gpu(0), "libcufile"), Some(State::Works), "{:?}", report.verdicts);
    assert_eq!(of(Target::Gpu(0), "staged"), None);
    assert_eq!(of(Target::Host, "host"), Some(State::Works), "{:?}", report.verdicts);
    assert!(report.exit_code < 2, "{:?}", report.findings);
}
