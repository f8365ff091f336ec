//! Every code has its page.

use evenkeel_core::Code;

use super::page;

#[test]
fn every_code_has_its_page() {
    for code in Code::ALL {
        let opening = format!("# {code}\n\n{}\n", code.title());
        assert!(page(*code).starts_with(&opening), "list {code} in pages.rs");
    }
}
