//! RDMA on this machine, or the reason why there is none.

use std::path::Path;

use forebay_verbs::{Fabric, Route, Why, verbs};

fn has_device() -> bool {
    Path::new("/sys/class/infiniband").read_dir().is_ok_and(|mut list| list.next().is_some())
}

#[test]
fn a_machine_without_devices_says_so() {
    if has_device() {
        eprintln!("skipped: this machine has an RDMA device");
        return;
    }
    let fabric = match verbs() {
        Ok(fabric) => fabric,
        Err(error) => {
            eprintln!("skipped: {error}");
            assert_eq!(Why::of(&error), Some(Why::NoLibrary), "{error}");
            return;
        }
    };
    assert_eq!(fabric.devices().unwrap(), []);
    let error = fabric.open(&Route::to("127.0.0.1:20049".parse().unwrap())).unwrap_err();
    assert_eq!(Why::of(&error), Some(Why::NoDevice), "{error}");
    assert!(error.hints()[0].contains("rdma link add"), "{error:?}");
    let error = fabric.listen("127.0.0.1:0".parse().unwrap()).unwrap_err();
    assert_eq!(Why::of(&error), Some(Why::NoDevice), "{error}");
}
