//! The index of a model that is spread over several files: `model.safetensors.index.json`.

use std::collections::BTreeMap;
use std::path::{Component, Path};

use forebay_error::{Error, ErrorKind, Result};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};

use crate::text::shown;

/// Longer than any index of real models by orders of magnitude.
const MAX_INDEX: usize = 100_000_000;

/// Which file has which tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Index {
    /// The files, each once, in the order of their names; relative to the index's folder and inside it.
    pub files: Vec<String>,
    /// Tensor names and the position of their file in `files`, in the order of the index.
    pub tensors: Vec<(String, usize)>,
    /// What the index says the tensors have in all, if it does.
    pub total_size: Option<u64>,
}

/// Reads an index. Names of files must stay inside the folder: no absolute ones, no `..`.
pub fn parse(json: &[u8]) -> Result<Index> {
    if json.len() > MAX_INDEX {
        return Err(invalid("the index is longer than any model needs").with("bytes", json.len()));
    }
    let raw: Raw = serde_json::from_slice(json)
        .map_err(|error| invalid(format!("the index of shards is not valid: {error}")))?;
    let mut positions: BTreeMap<&str, usize> = BTreeMap::new();
    for (tensor, file) in &raw.weight_map.0 {
        check(tensor, file)?;
        positions.insert(file, 0);
    }
    let mut names: Vec<&str> = raw.weight_map.0.iter().map(|(tensor, _)| tensor.as_str()).collect();
    names.sort_unstable();
    if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(invalid(format!("tensor {} appears twice in the index", shown(pair[0]))));
    }
    for (position, value) in positions.values_mut().enumerate() {
        *value = position;
    }
    let files = positions.keys().map(|&file| file.to_owned()).collect();
    let place = |file: &str| positions.get(file).copied().unwrap_or_default();
    let tensors = raw.weight_map.0.iter().map(|(tensor, file)| (tensor.clone(), place(file))).collect();
    // Some writers leave it out, some write it as a float; it is only told, never relied on.
    let total_size = raw.metadata.as_ref().and_then(|metadata| metadata.get("total_size")?.as_u64());
    Ok(Index { files, tensors, total_size })
}

fn check(tensor: &str, file: &str) -> Result<()> {
    let inside = Path::new(file).components().all(|part| matches!(part, Component::Normal(_)));
    if file.is_empty() || file.ends_with('/') || file.contains('\0') || !inside {
        return Err(invalid(format!("the file of tensor {} lies outside of the folder", shown(tensor)))
            .with("file", shown(file)));
    }
    Ok(())
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidInput, message)
}

#[derive(Deserialize)]
struct Raw {
    weight_map: Pairs,
    #[serde(default)]
    metadata: Option<serde_json::Map<String, serde_json::Value>>,
}

/// An object of texts, with all of its keys.
struct Pairs(Vec<(String, String)>);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Names;
        impl<'de> Visitor<'de> for Names {
            type Value = Pairs;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object of tensor names and files")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
                let mut pairs = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    let file: String = map
                        .next_value()
                        .map_err(|error| A::Error::custom(format!("tensor {}: {error}", shown(&name))))?;
                    pairs.push((name, file));
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(Names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_tensors() {
        let json = br#"{"metadata":{"total_size":12.0},"weight_map":{"b":"m-2.safetensors","a":"sub/m-1.safetensors",
            "c":"m-2.safetensors"}}"#;
        let index = parse(json).unwrap();
        assert_eq!(index.files, ["m-2.safetensors", "sub/m-1.safetensors"]);
        assert_eq!(index.tensors, [("b".to_owned(), 0), ("a".to_owned(), 1), ("c".to_owned(), 0)]);
        assert_eq!(index.total_size, None);
        assert_eq!(parse(br#"{"weight_map":{},"metadata":{"total_size":5}}"#).unwrap().total_size, Some(5));
    }

    #[test]
    fn refusals() {
        for (json, word) in [
            (r#"{"weight_map":{"a":"../x"}}"#, "outside"),
            (r#"{"weight_map":{"a":"x/../../y"}}"#, "outside"),
            (r#"{"weight_map":{"a":"/etc/passwd"}}"#, "outside"),
            (r#"{"weight_map":{"a":""}}"#, "outside"),
            (r#"{"weight_map":{"a":"x/"}}"#, "outside"),
            (r#"{"weight_map":{"a":"x\u0000y"}}"#, "outside"),
            (r#"{"weight_map":{"a":"x","a":"y"}}"#, "twice"),
            (r#"{"weight_map":{"a":1}}"#, "tensor `a`"),
            (r#"{"weight_map":["a"]}"#, "object"),
            ("{}", "weight_map"),
            ("[", "not valid"),
        ] {
            let error = parse(json.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(word), "{json}: {error}");
        }
    }
}
