//! Raw records as text for other programs.

use std::path::Path;

use forebay_error::plain;
use serde_json::{Value, json};

use crate::record::Record;

/// The names of the columns of [`csv_line`].
pub const CSV_HEADER: &str =
    "start_ns,latency_ns,thread,api,file,path,offset,size,result,memory,gpu,address,engine,group,flags";

/// A record as a line of CSV (RFC 4180), without its end. Control characters in the path are escapes: `\n`, `\u{1b}`.
pub fn csv_line(record: &Record, path: Option<&Path>) -> String {
    let path = path.map(Path::to_string_lossy).unwrap_or_default();
    let path = plain(&path);
    let quoted = if path.contains([',', '"']) {
        format!("\"{}\"", path.replace('"', "\"\""))
    } else {
        path.into_owned()
    };
    format!(
        "{},{},{},{},{},{quoted},{},{},{},{},{},{:#x},{},{},{}",
        record.start,
        record.latency,
        record.thread,
        record.api,
        record.file,
        record.offset,
        record.size,
        record.result,
        record.memory,
        record.gpu.map(|gpu| gpu.to_string()).unwrap_or_default(),
        record.address,
        record.engine,
        record.group,
        record.flags.names(),
    )
}

/// A record as an object.
pub fn json_line(record: &Record, path: Option<&Path>) -> Value {
    json!({
        "type": "call",
        "start_ns": record.start,
        "latency_ns": record.latency,
        "thread": record.thread,
        "api": record.api.name(),
        "file": record.file,
        "path": path.map(Path::to_string_lossy),
        "offset": record.offset,
        "size": record.size,
        "result": record.result,
        "memory": record.memory.name(),
        "gpu": record.gpu,
        "address": record.address,
        "engine": record.engine.name(),
        "group": record.group,
        "flags": record.flags.names(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Api;

    #[test]
    fn lines_have_as_many_fields_as_the_header() {
        let record = Record { api: Api::Write, size: 5, result: -28, gpu: Some(1), ..Record::default() };
        let line = csv_line(&record, Some(Path::new("/d/x")));
        assert_eq!(line, "0,0,0,Write,0,/d/x,0,5,-28,unknown,1,0x0,none,0,");
        assert_eq!(line.split(',').count(), CSV_HEADER.split(',').count());
        assert!(csv_line(&record, Some(Path::new("a,\"b\""))).contains(",\"a,\"\"b\"\"\","));
        assert!(csv_line(&record, Some(Path::new("a\x1b\nb"))).contains(",a\\u{1b}\\nb,"));
        assert_eq!(json_line(&record, None)["path"], Value::Null);
    }
}
