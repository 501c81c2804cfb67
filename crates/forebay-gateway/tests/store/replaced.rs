//! Objects that are large enough to be freed beside the answer.

use forebay_gateway::store::Store;

use crate::common::{abilities, put, quick_store, read};

#[test]
fn a_large_object_is_replaced_and_its_reader_has_the_old_one_to_its_end() {
    let (_dir, store) = quick_store(abilities());
    put(&store, "key", &vec![1; 3 << 20]);
    let mut old = store.open("bucket", "key").unwrap().file;
    for round in 2..5 {
        put(&store, "key", &vec![round; 3 << 20]);
        assert_eq!(read(&store, "key"), vec![round; 3 << 20]);
    }
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut old, &mut bytes).unwrap();
    assert_eq!(bytes, vec![1; 3 << 20]);
}
