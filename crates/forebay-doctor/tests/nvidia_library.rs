//! The exercise where NVIDIA's library was asked for, over its test double.

use forebay_doctor::engines::EngineState;
use forebay_doctor::exercise::{Exercise, ExerciseTarget, InPlace};
use forebay_doctor::{CheckOptions, LiveExercise, RealSystem, examine};

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
    let options =
        CheckOptions { paths: vec![dir.path().to_str().unwrap().to_owned()], ..CheckOptions::default() };
    let live = LiveExercise::open();
    let report = examine(&RealSystem, &live, &options).unwrap_or_else(|error| panic!("{error:?}"));
    let of = |target: ExerciseTarget, engine: &str| {
        let mut all = report.verdicts.iter().filter(|verdict| verdict.target == target);
        all.find(|verdict| verdict.engine == engine).map(|verdict| verdict.state)
    };
    assert_eq!(of(ExerciseTarget::Gpu(0), "libcufile"), Some(EngineState::Works), "{:?}", report.verdicts);
    assert_eq!(of(ExerciseTarget::Gpu(0), "staged"), None);
    assert_eq!(of(ExerciseTarget::Host, "host"), Some(EngineState::Works), "{:?}", report.verdicts);
    assert!(report.exit_code < 2, "{:?}", report.findings);
    // It moves the bytes where rdma is tried, too: that is not rdma at work.
    let by_server = live.read_by_server(ExerciseTarget::Gpu(0), &report.places[0]);
    assert!(matches!(by_server, Some(InPlace::Refused(_))), "{by_server:?}");
}
