//! The server over a directory: what clients do with it, ours and requests by hand.

use forebay_objects::Listed;

use crate::served::{Gateway, pattern};

#[test]
fn our_client_writes_reads_lists_copies_and_removes() {
    let gateway = Gateway::start();
    let bucket = gateway.bucket("bucket");
    let bytes = pattern(3 << 20);
    bucket.put("folder/a key", &bytes).unwrap();
    bucket.put("top", b"").unwrap();
    assert!(bucket.get("folder/a key", None).unwrap() == bytes);
    // It is a file, with these bytes, for everybody else.
    assert!(std::fs::read(gateway.directory().join("bucket/folder/a key")).unwrap() == bytes);

    let head = bucket.head("folder/a key", None).unwrap();
    assert_eq!(head.len, bytes.len() as u64);
    assert!(head.etag.clone().unwrap().contains('-'));
    assert!(head.checksums.iter().any(|(name, _)| name == "crc64nvme"), "{:?}", head.checksums);

    gateway.client(|| bucket.copy_from(&bucket, "folder/a key", "copy")).unwrap();
    assert!(bucket.get("copy", None).unwrap() == bytes);

    let keys = |prefix: &str, is_tree| {
        // Folders and objects of a page come apart.
        let mut keys: Vec<_> = bucket
            .list(prefix, is_tree)
            .map(|one| match one.unwrap() {
                Listed::Object(object) => object.key,
                Listed::Folder(folder) => folder,
            })
            .collect();
        keys.sort();
        keys
    };
    assert_eq!(keys("", true), ["copy", "folder/a key", "top"]);
    assert_eq!(keys("", false), ["copy", "folder/", "top"]);
    assert_eq!(keys("folder/", true), ["folder/a key"]);

    bucket.delete("copy").unwrap();
    assert!(bucket.delete_many(&["top".into(), "folder/a key".into(), "none".into()]).unwrap().is_empty());
    assert!(keys("", true).is_empty());
    assert_eq!(gateway.raw().ask("DELETE", "/bucket", &[], b"").status, 204);
    assert_eq!(gateway.raw().ask("HEAD", "/bucket", &[], b"").status, 404);
}

#[test]
fn ranges_terms_and_headers_of_answers() {
    let gateway = Gateway::start();
    gateway.bucket("bkt");
    let raw = gateway.raw();
    let bytes = pattern(1_000_003);
    let said = [("content-type", "text/x"), ("x-amz-meta-colour", "blue"), ("cache-control", "no-store")];
    let put = raw.ask("PUT", "/bkt/k", &said, &bytes);
    let etag = put.header("etag").unwrap();
    let ask = |headers: &[(&str, &str)]| raw.ask("GET", "/bkt/k", headers, b"");
    for (range, from, to) in [
        ("bytes=0-0", 0, 1),
        ("bytes=262143-262145", 262_143, 262_146),
        ("bytes=-7", 999_996, 1_000_003),
        ("bytes=999999-", 999_999, 1_000_003),
    ] {
        let reply = ask(&[("range", range)]);
        assert_eq!(reply.status, 206);
        assert_eq!(reply.header("content-range").unwrap(), format!("bytes {from}-{}/1000003", to - 1));
        assert!(reply.body == bytes[from..to], "{range}");
        assert_eq!(reply.header("x-amz-checksum-crc64nvme"), None);
    }
    let beyond = ask(&[("range", "bytes=1000003-")]);
    assert_eq!((beyond.status, beyond.header("content-range").unwrap().as_str()), (416, "bytes */1000003"));

    let whole = ask(&[("x-amz-checksum-mode", "ENABLED")]);
    assert!(whole.body == bytes);
    assert!(whole.header("x-amz-checksum-crc64nvme").is_some());
    for (name, value) in said {
        assert_eq!(whole.header(name).as_deref(), Some(value));
    }
    assert_eq!(ask(&[("if-none-match", &etag)]).status, 304);
    assert_eq!(ask(&[("if-match", "\"x\"")]).status, 412);
    assert_eq!(ask(&[("if-match", &etag)]).status, 200);
    let overridden = raw.get("/bkt/k?response-content-type=text%2Fplain");
    assert_eq!(overridden.header("content-type").as_deref(), Some("text/plain"));
    let none = raw.get("/bkt/none");
    assert_eq!((none.status, none.code().as_str()), (404, "NoSuchKey"));
    assert_eq!(none.header("x-amz-request-id").unwrap(), none.between("RequestId"));
    assert_eq!(raw.get("/none/k").code(), "NoSuchBucket");
}

#[test]
fn conditions_of_writes() {
    let gateway = Gateway::start();
    gateway.bucket("bkt");
    let raw = gateway.raw();
    let put = |headers: &[(&str, &str)]| raw.ask("PUT", "/bkt/k", headers, b"bytes");
    assert_eq!(put(&[("if-match", "\"x\"")]).status, 404);
    let etag = put(&[("if-none-match", "*")]).header("etag").unwrap();
    assert_eq!(put(&[("if-none-match", "*")]).code(), "PreconditionFailed");
    assert_eq!(put(&[("if-match", "\"x\"")]).status, 412);
    let etag = put(&[("if-match", &etag)]).header("etag").unwrap();
    assert_eq!(put(&[("if-none-match", &etag)]).status, 412);
    assert_eq!(put(&[("if-none-match", "\"x\"")]).status, 200);
    assert_eq!(put(&[("if-none-match", "\"x\""), ("if-match", "*")]).status, 501);
    assert_eq!(raw.ask("DELETE", "/bkt/k", &[("if-match", "\"x\"")], b"").status, 412);
    assert_eq!(raw.ask("DELETE", "/bkt/k", &[], b"").status, 204);
    assert_eq!(raw.ask("DELETE", "/bkt/k", &[], b"").status, 204);
}

#[test]
fn copies_and_tags() {
    let gateway = Gateway::start();
    gateway.bucket("bkt");
    let raw = gateway.raw();
    raw.ask("PUT", "/bkt/k", &[("x-amz-meta-a", "1"), ("x-amz-tagging", "t=1")], b"bytes");
    let copy = |to: &str, headers: &[(&str, &str)]| {
        let mut all = vec![("x-amz-copy-source", "/bkt/k")];
        all.extend_from_slice(headers);
        raw.ask("PUT", to, &all, b"")
    };
    assert_eq!(copy("/bkt/k", &[]).code(), "InvalidRequest");
    assert_eq!(copy("/bkt/k", &[("x-amz-metadata-directive", "REPLACE"), ("x-amz-meta-a", "2")]).status, 200);
    assert_eq!(raw.get("/bkt/k").header("x-amz-meta-a").as_deref(), Some("2"));
    assert_eq!(copy("/bkt/l", &[("x-amz-copy-source-if-match", "\"x\"")]).status, 412);
    assert_eq!(copy("/bkt/l", &[]).status, 200);
    let copied = raw.get("/bkt/l");
    assert_eq!((copied.text().as_str(), copied.header("x-amz-meta-a").as_deref()), ("bytes", Some("2")));
    assert_eq!(raw.get("/bkt/l?tagging").between("Key"), "t");
    let tags = "<Tagging><TagSet><Tag><Key>u</Key><Value>2</Value></Tag></TagSet></Tagging>";
    assert_eq!(raw.ask("PUT", "/bkt/l?tagging", &[], tags.as_bytes()).status, 200);
    assert_eq!(raw.get("/bkt/l?tagging").between("Key"), "u");
    assert_eq!(raw.ask("DELETE", "/bkt/l?tagging", &[], b"").status, 204);
    assert_eq!(raw.get("/bkt/l?tagging").between("Key"), "");
}

#[test]
fn pages_of_listings() {
    let gateway = Gateway::start();
    gateway.bucket("bkt");
    let raw = gateway.raw();
    for key in ["a%20b", "d/1", "d/2", "e", "f%2B"] {
        assert_eq!(raw.put(&format!("/bkt/{key}"), b"x").status, 200);
    }
    let keys = |text: &str| {
        text.split("<Key>").skip(1).map(|rest| rest.split('<').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(keys(&raw.get("/bkt?list-type=2").text()), ["a b", "d/1", "d/2", "e", "f+"]);
    assert_eq!(
        keys(&raw.get("/bkt?encoding-type=url&list-type=2").text()),
        ["a%20b", "d/1", "d/2", "e", "f%2B"]
    );
    let mut found = Vec::new();
    let mut token = String::new();
    loop {
        let page = raw.get(&format!("/bkt?{token}delimiter=%2F&list-type=2&max-keys=2"));
        assert_eq!(page.status, 200, "{}", page.text());
        found.extend(keys(&page.text()));
        let prefix = page
            .text()
            .split_once("<CommonPrefixes><Prefix>")
            .map(|(_, rest)| rest.split('<').next().unwrap().to_owned());
        found.extend(prefix);
        if page.between("IsTruncated") == "false" {
            break;
        }
        token = format!("continuation-token={}&", page.between("NextContinuationToken"));
    }
    found.sort();
    assert_eq!(found, ["a b", "d/", "e", "f+"]);
    assert_eq!(keys(&raw.get("/bkt?marker=d%2F1").text()), ["d/2", "e", "f+"]);
    assert_eq!(keys(&raw.get("/bkt?list-type=2&start-after=e").text()), ["f+"]);
    let none = raw.get("/bkt?list-type=2&max-keys=0");
    assert_eq!((none.between("IsTruncated").as_str(), keys(&none.text()).len()), ("false", 0));
    assert_eq!(raw.get("/bkt?list-type=2&max-keys=-1").status, 400);
    assert_eq!(raw.get("/bkt?continuation-token=%2A&list-type=2").status, 400);
}

#[test]
fn attributes_are_named_in_one_header() {
    let gateway = Gateway::start();
    gateway.bucket("bkt");
    let raw = gateway.raw();
    assert_eq!(raw.put("/bkt/k", b"bytes").status, 200);
    let reply =
        raw.ask("GET", "/bkt/k?attributes", &[("x-amz-object-attributes", "ETag,Checksum,ObjectSize")], b"");
    assert_eq!((reply.status, reply.between("ObjectSize").as_str()), (200, "5"), "{}", reply.text());
    assert!(!reply.between("ChecksumCRC64NVME").is_empty(), "{}", reply.text());
}

#[test]
fn checksums_and_digests_are_compared() {
    let gateway = Gateway::start();
    gateway.bucket("bkt");
    let raw = gateway.raw();
    let put = |headers: &[(&str, &str)]| raw.ask("PUT", "/bkt/k", headers, b"123456789");
    for (name, right) in [
        ("x-amz-checksum-crc64nvme", "rosUhgp5mIg="),
        ("x-amz-checksum-crc32c", "4waSgw=="),
        ("content-md5", "JfnnlDI7RTiF9RgfG2JNCw=="),
    ] {
        assert_eq!(put(&[(name, right)]).status, 200, "{name}");
        let wrong = format!("AAAA{}", &right[4..]);
        assert_eq!(put(&[(name, &wrong)]).code(), "BadDigest", "{name}");
    }
    assert_eq!(
        put(&[("content-md5", "JfnnlDI7RTiF9RgfG2JNCw==")]).header("etag").as_deref(),
        Some("\"25f9e794323b453885f5181f1b624d0b\"")
    );
    // Refused requests changed nothing.
    assert_eq!(raw.get("/bkt/k").text(), "123456789");
}

#[test]
fn an_upload_that_begins_at_one_gateway_ends_at_another() {
    let first = Gateway::start();
    first.bucket("bkt");
    let second = first.beside();
    let parts = [pattern(5 << 20), pattern(1000)];
    let begun = first.raw().ask("POST", "/bkt/k?uploads", &[("x-amz-meta-a", "1")], b"");
    let id = begun.between("UploadId");
    assert!(!id.is_empty(), "{}", begun.text());
    let put = |raw: crate::served::raw::Raw, number: usize| {
        let reply = raw.put(&format!("/bkt/k?partNumber={number}&uploadId={id}"), &parts[number - 1]);
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply.header("etag").unwrap()
    };
    let etags = [put(first.raw(), 1), put(second.raw(), 2)];
    let listed = second.raw().get(&format!("/bkt/k?uploadId={id}")).text();
    assert_eq!(listed.matches("<PartNumber>").count(), 2, "{listed}");
    assert!(first.raw().get("/bkt?uploads").text().contains(&id));
    let part = |number: usize| {
        format!("<Part><PartNumber>{number}</PartNumber><ETag>{}</ETag></Part>", etags[number - 1])
    };
    let body = format!("<CompleteMultipartUpload>{}{}</CompleteMultipartUpload>", part(1), part(2));
    let done = second.raw().ask("POST", &format!("/bkt/k?uploadId={id}"), &[], body.as_bytes());
    assert_eq!(done.status, 200, "{}", done.text());
    assert!(!done.between("ChecksumCRC64NVME").is_empty(), "{}", done.text());
    let whole = first.raw().ask("GET", "/bkt/k", &[("x-amz-checksum-mode", "ENABLED")], b"");
    assert!(whole.body == parts.concat());
    assert_eq!(whole.header("x-amz-meta-a").as_deref(), Some("1"));
    // The checksum that was joined is that of the bytes.
    assert_eq!(
        whole.header("x-amz-checksum-crc64nvme"),
        first.raw().put("/bkt/again", &parts.concat()).header("x-amz-checksum-crc64nvme")
    );
    let part = first.raw().get("/bkt/k?partNumber=2");
    assert_eq!((part.status, part.header("x-amz-mp-parts-count").as_deref()), (206, Some("2")));
    assert!(part.body == parts[1]);
    assert_eq!(
        first.raw().ask("DELETE", &format!("/bkt/none?uploadId={id}x"), &[], b"").code(),
        "NoSuchUpload"
    );
}

#[test]
fn what_a_gateway_left_that_was_killed_is_swept_when_one_starts() {
    let first = Gateway::start();
    first.bucket("bkt");
    let dir = first.directory().join("bkt/.forebay/tmp");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("left"), "x").unwrap();
    let _second = first.beside();
    let begin = std::time::Instant::now();
    while dir.join("left").exists() {
        assert!(begin.elapsed() < std::time::Duration::from_secs(10));
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

#[test]
fn checksums_of_uploads_are_compared_whatever_they_are() {
    let gateway = Gateway::start();
    gateway.bucket("bkt");
    let raw = gateway.raw();
    let begin =
        |headers: &[(&str, &str)]| raw.ask("POST", "/bkt/k?uploads", headers, b"").between("UploadId");
    let put = |id: &str, headers: &[(&str, &str)]| {
        raw.ask("PUT", &format!("/bkt/k?partNumber=1&uploadId={id}"), headers, b"123456789")
    };
    let end = |id: &str, etag: &str, headers: &[(&str, &str)]| {
        let part = format!("<Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part>");
        let body = format!("<CompleteMultipartUpload>{part}</CompleteMultipartUpload>");
        raw.ask("POST", &format!("/bkt/k?uploadId={id}"), headers, body.as_bytes())
    };
    let crc32 = ("x-amz-checksum-crc32", "y/Q5Jg==");
    // The parts have CRC-64/NVME, as none was asked for.
    let id = begin(&[]);
    let etag = put(&id, &[]).header("etag").unwrap();
    assert_eq!(put(&id, &[]).header("etag").unwrap(), etag, "of equal bytes");
    assert_eq!(end(&id, &etag, &[crc32]).code(), "InvalidRequest");
    assert_eq!(end(&id, &etag, &[("x-amz-checksum-crc64nvme", "AAAAgp5mIg==")]).code(), "InvalidRequest");
    assert_eq!(end(&id, &etag, &[("x-amz-checksum-crc64nvme", "AAAUhgp5mIg=")]).code(), "BadDigest");
    let done = end(&id, &etag, &[("x-amz-checksum-crc64nvme", "rosUhgp5mIg=")]);
    assert_eq!(done.between("ChecksumCRC64NVME"), "rosUhgp5mIg=", "{done:?}");
    // They have CRC-32.
    let id = begin(&[]);
    let etag = put(&id, &[crc32]).header("etag").unwrap();
    assert_eq!(end(&id, &etag, &[crc32]).between("ChecksumCRC32"), "y/Q5Jg==");
    let part = raw.ask("GET", "/bkt/k?partNumber=1", &[("x-amz-checksum-mode", "ENABLED")], b"");
    assert_eq!(part.header("x-amz-checksum-crc32").as_deref(), Some("y/Q5Jg=="));
    // A part of another kind than the upload was begun with.
    let id = begin(&[("x-amz-checksum-algorithm", "SHA256")]);
    assert_eq!(put(&id, &[crc32]).code(), "InvalidRequest");
}
