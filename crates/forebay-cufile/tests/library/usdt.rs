//! The probes that tracers find in the built library.

use std::collections::BTreeMap;
use std::process::Command;

use crate::common::{library, run};

/// Provider, name, and the sizes of the arguments (negative: signed).
const PROBES: [(&str, &str, &[i32]); 14] = [
    ("cufio", "cufio_px_read", &[-4, -8, 8, -8, -8, -4]),
    ("cufio", "cufio_px_write", &[-4, -8, 8, -8, -8, -4]),
    ("cufio", "cufio_rdma_read", &[-4, -8, 8, -8, -8, -4]),
    ("cufio", "cufio_rdma_write", &[-4, -8, 8, -8, -8, -4]),
    ("cufio", "cufio_gds_read", &[-4, -8, 8, -8, -8, -4, -4]),
    ("cufio", "cufio_gds_write", &[-4, -8, 8, -8, -8, -4, -4]),
    ("cufio", "cufio_gds_read_async", &[-4, -8, 8, -8, -8, -4, -4]),
    ("cufio", "cufio_gds_write_async", &[-4, -8, 8, -8, -8, -4, -4]),
    ("cufio", "cufio_gds_unaligned_write", &[-4, -8, 8, -8, -8, -4, -4]),
    ("cufio-internal", "cufio-internal-write-bb", &[-4, -8, 8, -8, -8, -4]),
    ("cufio-internal", "cufio-internal-read-bb", &[-4, -8, 8, -8, -8, -4]),
    ("cufio-internal", "cufio-internal-bb-done", &[-4, -8, 8, -8, -8, -4]),
    ("cufio-internal", "cufio-internal-io-done", &[-4, -8, 8, -8, -4]),
    ("cufio-internal", "cufio-internal-map", &[-4, 8, 8, -4, -4, -8]),
];

/// One site of a probe, as the file's notes tell.
#[derive(Debug, Default)]
struct Site {
    provider: String,
    name: String,
    location: u64,
    base: u64,
    semaphore: u64,
    arguments: Vec<String>,
}

fn sites() -> Vec<Site> {
    let notes = run(Command::new("readelf").args(["-n", "-W"]).arg(library()));
    let mut sites: Vec<Site> = Vec::new();
    for line in notes.lines().map(str::trim) {
        // Wide output has the provider behind the note's type.
        if let Some((_, provider)) = line.split_once("Provider: ") {
            sites.push(Site { provider: provider.to_owned(), ..Site::default() });
            continue;
        }
        let Some((key, value)) = line.split_once(": ") else { continue };
        match key {
            "Name" => value.clone_into(&mut sites.last_mut().unwrap().name),
            "Location" => {
                let numbers: Vec<u64> = value
                    .split(", ")
                    .map(|part| part.rsplit(' ').next().unwrap().trim_start_matches("0x"))
                    .map(|digits| u64::from_str_radix(digits, 16).unwrap())
                    .collect();
                let site = sites.last_mut().unwrap();
                (site.location, site.base, site.semaphore) = (numbers[0], numbers[1], numbers[2]);
            }
            "Arguments" => {
                sites.last_mut().unwrap().arguments = value.split(' ').map(str::to_owned).collect();
            }
            _ => {}
        }
    }
    sites
}

#[test]
fn every_probe_is_listed_with_its_arguments() {
    let sites = sites();
    let mut seen: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for site in &sites {
        let probe =
            PROBES.iter().find(|(provider, name, _)| *provider == site.provider && *name == site.name);
        let (provider, name, sizes) = probe.unwrap_or_else(|| panic!("an unknown probe: {site:?}"));
        let found: Vec<i32> =
            site.arguments.iter().map(|text| text.split_once('@').unwrap().0.parse().unwrap()).collect();
        assert_eq!(found, **sizes, "{site:?}");
        let in_register = if cfg!(target_arch = "x86_64") { '%' } else { 'x' };
        let operand = |text: &String| text.split_once('@').unwrap().1.to_owned();
        assert!(
            site.arguments
                .iter()
                .map(operand)
                .all(|text| text.starts_with(in_register) || text.starts_with('w')),
            "{site:?}"
        );
        *seen.entry((provider, name)).or_default() += 1;
    }
    assert_eq!(seen.len(), PROBES.len(), "{seen:?}");
}

#[test]
fn probes_are_in_the_code_and_their_base_is_right() {
    let sections = run(Command::new("readelf").args(["-S", "-W"]).arg(library()));
    let section = |name: &str| {
        let line = sections.lines().find(|line| line.split_whitespace().any(|word| word == name));
        let words: Vec<&str> = line.unwrap().split(']').nth(1).unwrap().split_whitespace().collect();
        let number = |text: &str| u64::from_str_radix(text, 16).unwrap();
        // Name, type, address, offset, size.
        (number(words[2]), number(words[4]))
    };
    let ((text, length), (base, _)) = (section(".text"), section(".stapsdt.base"));
    for site in sites() {
        assert!((text..text + length).contains(&site.location), "{site:?}");
        assert_eq!((site.base, site.semaphore), (base, 0), "{site:?}");
    }
}
