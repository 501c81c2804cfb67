//! The exercise for real: the engine over the test double of the CUDA driver.

use forebay_doctor::engines::EngineState;
use forebay_doctor::exercise::{Exercise, ExerciseOutcome, ExerciseTarget, InPlace};
use forebay_doctor::{CheckOptions, LiveExercise, RealSystem, examine, gdscheck, render, test_file};

/// One test, because the driver is loaded once for the process.
#[test]
fn a_gpu_is_exercised_through_staged() {
    let fake = match fake_cuda::install() {
        Ok(fake) => fake,
        Err(why) => {
            eprintln!("skipped: {why}");
            return;
        }
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap().to_owned();
    let live = LiveExercise::open();
    assert_eq!(live.offered().gpus.len(), 1);

    let options = CheckOptions { paths: vec![path.clone()], ..CheckOptions::default() };
    let report = examine(&RealSystem, &live, &options).unwrap_or_else(|error| panic!("{error:?}"));
    let staged = report.verdicts.iter().find(|verdict| verdict.engine == "staged").unwrap();
    assert_eq!(staged.state, EngineState::Works, "{staged:?}");
    assert_eq!(staged.target, ExerciseTarget::Gpu(0));
    let exercise = staged.exercise.as_ref().unwrap();
    assert!(
        matches!(exercise.warm, ExerciseOutcome::Works { bytes, .. } if bytes == 8 << 20),
        "{exercise:?}"
    );
    assert_eq!(exercise.engine.as_deref(), Some("staged"));
    let mapped = report.verdicts.iter().find(|verdict| verdict.engine == "mapped").unwrap();
    assert_eq!(mapped.state, EngineState::Works, "{mapped:?}");
    assert!(report.pin_budget.as_ref().is_some_and(|budget| budget.bytes > 0), "{:?}", report.pin_budget);
    assert!(render::text(&report).contains("\npinned page cache: at most "), "{}", render::text(&report));
    assert!(gdscheck::platform(&report).contains("(staged and mapped, exercised"), "{report:?}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);

    let file = dir.path().join("file");
    std::fs::write(&file, vec![3u8; 70_001]).unwrap();
    let test = test_file(&live, ExerciseTarget::Gpu(0), file.to_str().unwrap());
    assert_eq!(test.read.unwrap().bytes, 70_001);

    // On a mount of NFS its server is tried, too; elsewhere the report has the reason why not.
    let by_server = |live: &LiveExercise| match live.read_by_server(ExerciseTarget::Gpu(0), &report.places[0])
    {
        Some(InPlace::Refused(why)) => why.text,
        other => panic!("{other:?}"),
    };
    assert!(report.verdicts.iter().all(|verdict| verdict.engine != "placed"));
    assert_eq!(by_server(&live), "the GPU's driver makes no dma-bufs of its memory");
    const DMA_BUF_SUPPORTED: i32 = 124;
    fake.set_attribute(DMA_BUF_SUPPORTED, 1);
    assert_eq!(by_server(&LiveExercise::open()), "the file is not one of a server's");

    // Copies that fail are failures of the exercise, said with their reason, and the exit code follows.
    fake.fail_next("async:copy", 700, 0, u64::MAX);
    let report = examine(&RealSystem, &live, &options).unwrap_or_else(|error| panic!("{error:?}"));
    let staged = report.verdicts.iter().find(|verdict| verdict.engine == "staged").unwrap();
    assert!(matches!(staged.state, EngineState::Fails), "{staged:?}");
    assert_eq!(report.exit_code, 2, "{:?}", report.findings);
    assert!(!gdscheck::platform(&report).contains("supports"));
}
