//! Every behaviour that is written down is one that `store_suite!` runs.

use std::{collections::BTreeSet, fs, path::Path};

#[test]
fn no_behaviour_is_left_out_of_the_suite() {
    let suite = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/suite");
    let listed = fs::read_to_string(suite.join("mod.rs")).unwrap();
    let listed: BTreeSet<_> = listed.split(|c: char| !c.is_alphanumeric() && c != '_').collect();

    let mut behaviours = 0;
    for file in fs::read_dir(suite).unwrap() {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        for line in text.lines() {
            let Some((name, _)) = line.strip_prefix("pub async fn ").and_then(|rest| rest.split_once('('))
            else {
                continue;
            };
            assert!(listed.contains(name), "store_suite! does not run {name}");
            behaviours += 1;
        }
    }
    assert!(behaviours > 100, "the behaviours are looked for where they are");
}
