//! The whole report on machines that are not here.

mod machines;

use forebay_doctor::engines::EngineState;
use forebay_doctor::exercise::{Answer, Exercise, ExerciseTarget, Hinted, InPlace, ServerAnswers};
use forebay_doctor::finding::{Finding, Severity};
use forebay_doctor::storage::DiskKind;
use forebay_doctor::{CheckOptions, CheckReport, DoctorOptions, diagnose, examine, gdscheck, render};
use machines::{BAR, Fake, broken, container, h200_vm, metal, no_gpu};

fn look(machine: &Fake, options: &CheckOptions) -> CheckReport {
    examine(machine, machine, options).unwrap_or_else(|error| panic!("{error:?}"))
}

fn text(report: &CheckReport) -> String {
    let file = report.file.as_ref().map(gdscheck::file).unwrap_or_default();
    format!("{}{file}\n{}exit code {}\n", gdscheck::platform(report), render::text(report), report.exit_code)
}

#[test]
fn h200_in_a_cloud_vm() {
    insta::assert_snapshot!(text(&look(&h200_vm(), &CheckOptions::default())));
}

#[test]
fn bare_metal_with_the_p2p_bug() {
    insta::assert_snapshot!(text(&look(&metal(), &CheckOptions::default())));
}

#[test]
fn container_with_seccomp() {
    let options = CheckOptions { file: Some("/models/a.safetensors".into()), ..CheckOptions::default() };
    insta::assert_snapshot!(text(&look(&container(), &options)));
}

#[test]
fn a_pod_is_told_what_to_write_into_its_manifest() {
    let mut machine = container();
    machine.set("KUBERNETES_SERVICE_HOST", "10.96.0.1");
    let report = look(&machine, &CheckOptions::default());
    let ring = report.findings.iter().find(|finding| finding.id == "io-uring").unwrap();
    assert_eq!(ring.evidence[1], "/proc/self/status: Seccomp: 2");
    assert!(ring.fix.as_deref().unwrap().starts_with("securityContext: {seccompProfile:"), "{ring:?}");
}

/// A server that wrote wrong bytes is no healthy one, whatever other engines do.
#[test]
fn what_a_server_wrote_wrong_is_a_finding() {
    let mut machine = metal();
    let of = |machine: &Fake| {
        let report = look(machine, &CheckOptions::default());
        report.findings.into_iter().find(|finding| finding.id == "engine-fails")
    };
    assert!(of(&machine).is_none());
    machine.by_server = Some(InPlace::Failed(Hinted::new("wrong bytes arrived")));
    assert_eq!(of(&machine).unwrap().text, "placed to GPU 0 at /nfs: wrong bytes arrived");
}

fn answers() -> ServerAnswers {
    ServerAnswers {
        mount_point: "/nfs".to_owned(),
        server: Some("10.0.0.1".to_owned()),
        handle: Answer::Yes(Hinted::new("the kernel gives handles")),
        any_port: Answer::No(Hinted::new("from ports below 1024 only").fix("sudo exportfs -ra")),
        rdma: Answer::Unknown(Hinted::new("it did not answer").fix("rpcinfo SERVER")),
    }
}

#[test]
fn what_a_server_says_is_told_with_what_to_type() {
    let mut machine = metal();
    machine.answers = Some(answers());
    let report = look(&machine, &CheckOptions::default());
    assert_eq!(report.servers, [answers()], "each mount is asked once");
    let of =
        |id: &str| -> Finding { report.findings.iter().find(|finding| finding.id == id).unwrap().clone() };
    let (handle, port, rdma) = (of("nfs-handle"), of("nfs-any-port"), of("nfs-rdma-port"));
    assert_eq!((handle.severity, handle.text.as_str()), (Severity::Ok, "/nfs: the kernel gives handles"));
    assert_eq!((port.severity, port.fix.as_deref()), (Severity::Note, Some("sudo exportfs -ra")));
    assert_eq!((rdma.severity, rdma.fix.as_deref()), (Severity::Note, Some("rpcinfo SERVER")));
    assert_eq!(
        (port.evidence.as_slice(), handle.evidence.as_slice()),
        (["asked: 10.0.0.1".to_owned()].as_slice(), ["name_to_handle_at: told".to_owned()].as_slice(),)
    );
}

/// The places of GPU and NIC on the bus, and the text about them.
#[test]
fn the_distance_of_gpu_and_nic_is_told() {
    let gpu = "0000:1b:00.0";
    let near = "/sys/devices/pci0000:1a/0000:1a:01.0";
    for (gpu_path, nic_path, said) in [
        (format!("{near}/{gpu}"), format!("{near}/0000:1c:00.0"), "behind one PCIe switch (0000:1a:01.0)"),
        (
            format!("{near}/{gpu}"),
            "/sys/devices/pci0000:1a/0000:1a:02.0/0000:1c:00.0".into(),
            "behind one host bridge",
        ),
        (
            format!("{near}/{gpu}"),
            "/sys/devices/pci0000:80/0000:80:02.0/0000:1c:00.0".into(),
            "on NUMA node 0",
        ),
    ] {
        let mut machine = metal();
        machine.pci(&gpu_path, 0x03_0200, 0x10de, 0x2335).pci(&nic_path, 0x02_0000, 0x15b3, 0x1021);
        machine.link("/sys/class/infiniband/mlx5_0/device", &nic_path);
        machine.file("/sys/class/infiniband/mlx5_0/device/numa_node", "0\n");
        let found = look(&machine, &CheckOptions::default()).findings;
        let of: Vec<_> = found.iter().filter(|finding| finding.id == "nic-distance").collect();
        assert_eq!(of.len(), 1, "one for the GPU, by the link that is up");
        assert_eq!((of[0].severity, &of[0].fix), (Severity::Ok, &None));
        assert!(
            of[0].text.ends_with(said) && of[0].text.starts_with("GPU 0 and the RDMA link mlx5_0/1"),
            "{of:?}"
        );
    }
}

/// What the exercise gives is check's alone; all else the two have in common, word by word.
#[test]
fn check_and_doctor_have_one_set_of_findings() {
    let of_exercise = [
        "engine-fails",
        "nothing-works",
        "not-exercised",
        "no-lanes",
        "engine-note",
        "o-direct",
        "residency",
    ];
    for machine in [h200_vm(), metal(), container(), no_gpu(), broken()] {
        let mut checked = look(&machine, &CheckOptions::default()).findings;
        checked.retain(|finding| !of_exercise.contains(&finding.id));
        let doctor = diagnose(&machine, &machine.offered(), &DoctorOptions::default());
        let doctor = doctor.unwrap_or_else(|error| panic!("{error:?}"));
        assert_eq!(checked, doctor.findings);
    }
}

#[test]
fn machine_without_gpu() {
    insta::assert_snapshot!(text(&look(&no_gpu(), &CheckOptions::default())));
}

#[test]
fn nothing_works() {
    let report = look(&broken(), &CheckOptions::default());
    assert_eq!(report.exit_code, 2);
    insta::assert_snapshot!(text(&report));
}

#[test]
fn a_good_machine_is_usable() {
    let mut machine = h200_vm();
    machine.file("/run/udev/data/b254:0", "E:ID_FS_USAGE=filesystem\n");
    let report = look(&machine, &CheckOptions { paths: vec!["/work".into()], ..CheckOptions::default() });
    assert_eq!(report.exit_code, 0, "{:?}", report.findings);
    assert_eq!(report.places.len(), 1);
    assert!(gdscheck::platform(&report).contains(" Platform verification succeeded\n"));
}

#[test]
fn unknown_devices_and_paths_are_errors_with_a_fix() {
    let machine = h200_vm();
    let error =
        examine(&machine, &machine, &CheckOptions { device: Some(3.into()), ..CheckOptions::default() })
            .unwrap_err();
    assert_eq!(error.fix.as_deref(), Some("use -d 0"));
    let error =
        examine(&machine, &machine, &CheckOptions { paths: vec!["/nope".into()], ..CheckOptions::default() });
    assert!(error.unwrap_err().text.contains("/nope"));
    let error =
        examine(&no_gpu(), &no_gpu(), &CheckOptions { device: Some(1.into()), ..CheckOptions::default() });
    assert!(error.unwrap_err().text.contains("0 usable GPU"));
    assert!(
        examine(&no_gpu(), &no_gpu(), &CheckOptions { device: Some(0.into()), ..CheckOptions::default() })
            .is_ok()
    );
}

#[test]
fn a_file_that_cannot_be_read_is_exit_code_2() {
    let machine = h200_vm();
    let report = look(&machine, &CheckOptions { file: Some("/nope".into()), ..CheckOptions::default() });
    assert_eq!(report.exit_code, 2);
    let text = gdscheck::file(report.file.as_ref().unwrap());
    assert!(text.starts_with(" GDS register error: /nope: "), "{text}");
}

#[test]
fn the_words_of_success_need_an_exercise() {
    for machine in [broken(), no_gpu()] {
        let text = gdscheck::platform(&look(&machine, &CheckOptions::default()));
        assert!(!text.contains("succeeded") && !text.contains("supports"), "{text}");
    }
}

/// The documented keys of the JSON form; docs/reference/check.md must name each.
#[test]
fn json_has_the_documented_keys() {
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/check.md");
    let docs = std::fs::read_to_string(docs).unwrap();
    let mut machine = metal();
    machine.file("/data/x", "x");
    machine.answers = Some(answers());
    let options = CheckOptions { file: Some("/data/x".into()), ..CheckOptions::default() };
    let value = serde_json::to_value(look(&machine, &options)).unwrap();
    let mut keys = Vec::new();
    collect(&value, "", &mut keys);
    keys.sort();
    keys.dedup();
    for key in &keys {
        let name = key.rsplit('.').next().unwrap();
        assert!(docs.contains(&format!("`{name}`")), "docs/reference/check.md does not name {key}");
    }
    insta::assert_snapshot!(keys.join("\n"));
}

fn collect(value: &serde_json::Value, path: &str, keys: &mut Vec<String>) {
    match value {
        serde_json::Value::Object(map) => {
            for (key, value) in map {
                // The options of libcufile are a map from names to values, not part of the schema.
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                if path != "cufile.values" {
                    collect(value, &path, keys);
                }
                keys.push(path);
            }
        }
        serde_json::Value::Array(items) => {
            for item in items {
                collect(item, &format!("{path}[]"), keys);
            }
        }
        _ => {}
    }
}

#[test]
fn memory_in_a_bar_is_exercised_alone_when_asked_for() {
    let options =
        |name: &str| CheckOptions { device: Some(name.parse().unwrap()), ..CheckOptions::default() };
    let machine = metal();
    let error = examine(&machine, &machine, &options("p2pmem:ffff:00:00.0")).unwrap_err();
    assert!(error.text.starts_with("no such device: p2pmem:ffff:00:00.0"), "{error:?}");
    let report = examine(&machine, &machine, &options(BAR)).unwrap();
    let of_bar: Vec<_> = report
        .verdicts
        .iter()
        .filter(|verdict| verdict.target == ExerciseTarget::Bar(BAR.to_owned()))
        .collect();
    assert!(
        !of_bar.is_empty()
            && report.verdicts.iter().all(|verdict| !matches!(verdict.target, ExerciseTarget::Gpu(_)))
    );
    for verdict in of_bar {
        let is_drive =
            report.places.iter().any(|one| one.path == verdict.place && one.kind == DiskKind::Nvme);
        match verdict.engine {
            "staged" => assert_eq!(verdict.state, EngineState::Works, "{verdict:?}"),
            "p2p" if is_drive => assert_eq!(verdict.state, EngineState::Works, "{verdict:?}"),
            "p2p" => assert_eq!(verdict.state, EngineState::Refused, "{verdict:?}"),
            other => panic!("{other} has no business there"),
        }
    }
    let text = format!("{}{}", gdscheck::platform(&report), render::text(&report));
    assert!(text.contains(" GPUs were left out: only p2pmem:0000:05:00.0 was asked for\n"), "{text}");
    assert!(text.contains("\nmemory in a PCI BAR: p2pmem:0000:05:00.0 ("), "{text}");
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["verdicts"][0]["target"], serde_json::json!({ "bar": BAR }));
}
