//! Modules point one way: at each level of a crate's tree, no module leads back to itself by what it names
//! of its siblings. A module and those inside it are one.

use petgraph::algo::tarjan_scc;
use petgraph::graph::{DiGraph, EdgeReference};
use petgraph::visit::EdgeRef;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use syn::visit::{self, Visit};
use syn::{Attribute, File, Item, ItemUse, UseTree, Visibility};

/// Where a module is in its crate: the names on the way from the root, which has none.
type Place = Vec<String>;

/// What one module's source says, tests left out.
#[derive(Default)]
struct Module {
    /// Names that `use` brings, and what they stand for.
    brought: BTreeMap<String, Vec<String>>,
    /// Paths that it names, but for those that it only offers to others.
    named: BTreeSet<Vec<String>>,
}

impl Module {
    fn read(source: &File) -> Module {
        let mut module = Module::default();
        module.visit_file(source);
        module
    }

    fn take(&mut self, tree: &UseTree, before: &[String], is_offered: bool) {
        let (name, stands_for) = match tree {
            UseTree::Path(path) => {
                let before = [before, &[path.ident.to_string()]].concat();
                return self.take(&path.tree, &before, is_offered);
            }
            UseTree::Group(group) => {
                return group.items.iter().for_each(|one| self.take(one, before, is_offered));
            }
            UseTree::Name(name) if name.ident == "self" => {
                (before.last().cloned(), before.to_vec())
            }
            UseTree::Name(name) => (Some(name.ident.to_string()), with(before, &name.ident)),
            UseTree::Rename(rename) => {
                (Some(rename.rename.to_string()), with(before, &rename.ident))
            }
            _ => (None, before.to_vec()),
        };
        if let Some(name) = name {
            self.brought.insert(name, stands_for.clone());
        }
        if !is_offered {
            self.named.insert(stands_for);
        }
    }
}

fn with(before: &[String], name: &syn::Ident) -> Vec<String> {
    [before, &[name.to_string()]].concat()
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|one| {
        let is_condition = |list: &syn::MetaList| list.tokens.to_string().contains("test");
        one.path().is_ident("cfg") && one.meta.require_list().is_ok_and(is_condition)
    })
}

impl<'a> Visit<'a> for Module {
    fn visit_item(&mut self, item: &'a Item) {
        let attributes = match item {
            Item::Mod(one) => &one.attrs,
            Item::Fn(one) => &one.attrs,
            Item::Impl(one) => &one.attrs,
            Item::Use(one) => &one.attrs,
            _ => return visit::visit_item(self, item),
        };
        if !is_for_tests(attributes) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'a ItemUse) {
        self.take(&item.tree, &[], !matches!(item.vis, Visibility::Inherited));
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        if path.segments.len() > 1 {
            self.named.insert(path.segments.iter().map(|one| one.ident.to_string()).collect());
        }
        visit::visit_path(self, path);
    }
}

/// The modules of a crate.
struct Modules(BTreeMap<Place, Module>);

impl Modules {
    fn of(folder: &Path) -> Modules {
        let mut modules = BTreeMap::new();
        read_folder(folder, &Vec::new(), &mut modules);
        Modules(modules)
    }

    /// The module that holds what a path names as `from` reads it, through all that is offered on the way.
    /// `None` if that is a module itself, or belongs to another crate.
    fn home(&self, from: &Place, path: &[String], depth: u32) -> Option<Place> {
        let (first, mut rest) = path.split_first()?;
        let mut place = from.clone();
        match first.as_str() {
            "crate" => place.clear(),
            "self" => {}
            "super" => {
                place.pop()?;
                while let Some(("super", after)) =
                    rest.split_first().map(|(one, r)| (one.as_str(), r))
                {
                    place.pop()?;
                    rest = after;
                }
            }
            _ if self.0.contains_key(&inside(from, first)) => rest = path,
            _ => {
                let stands_for = self.0.get(from)?.brought.get(first)?;
                let whole = [stands_for, rest].concat();
                return if depth == 0 || whole == path {
                    None
                } else {
                    self.home(from, &whole, depth - 1)
                };
            }
        }
        while let Some((next, after)) = rest.split_first() {
            let deeper = inside(&place, next);
            if !self.0.contains_key(&deeper) {
                let stands_for = self.0.get(&place)?.brought.get(next);
                let further = |path: &Vec<String>| {
                    let whole = [path, after].concat();
                    self.home(&place, &whole, depth.checked_sub(1)?)
                };
                return stands_for.map_or(Some(place.clone()), further);
            }
            (place, rest) = (deeper, after);
        }
        None
    }

    /// Who names what of whom where siblings lead back to themselves, at whatever level.
    fn circles(&self) -> Vec<String> {
        let mut graph = DiGraph::new();
        let mut nodes = BTreeMap::new();
        for (from, module) in &self.0 {
            for path in &module.named {
                let Some(to) = self.home(from, path, 8) else { continue };
                let shared = from.iter().zip(&to).take_while(|(one, other)| one == other).count();
                if shared == from.len() || shared == to.len() {
                    continue;
                }
                let [one, other] = [from, &to].map(|place| {
                    let place = place[..=shared].to_vec();
                    *nodes.entry(place).or_insert_with(|| graph.add_node(()))
                });
                let said = format!("{} names {}", from.join("::"), path.join("::"));
                graph.add_edge(one, other, said);
            }
        }
        let mut circles = Vec::new();
        for circle in tarjan_scc(&graph).iter().filter(|circle| circle.len() > 1) {
            let is_in = |arrow: &EdgeReference<'_, String>| {
                circle.contains(&arrow.source()) && circle.contains(&arrow.target())
            };
            circles
                .extend(graph.edge_references().filter(is_in).map(|arrow| arrow.weight().clone()));
        }
        circles
    }
}

fn inside(place: &Place, name: &str) -> Place {
    [place.as_slice(), &[name.to_owned()]].concat()
}

fn read_folder(folder: &Path, place: &Place, modules: &mut BTreeMap<Place, Module>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        if path.is_dir() {
            // Programs beside the library are crates of their own.
            if name != "bin" {
                read_folder(&path, &inside(place, name), modules);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") && name != "tests" {
            let at = if ["lib", "main", "mod"].contains(&name) {
                place.clone()
            } else {
                inside(place, name)
            };
            let source = fs::read_to_string(&path).unwrap();
            let source =
                syn::parse_file(&source).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            modules.insert(at, Module::read(&source));
        }
    }
}

#[test]
fn modules_point_one_way() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let crates = fs::read_dir(root.join("crates")).unwrap().map(|entry| entry.unwrap().path());
    let mut found = Vec::new();
    for folder in crates.chain([root.join("fuzz"), root.join("xtask")]) {
        let modules = Modules::of(&folder.join("src"));
        let circles = modules.circles().into_iter();
        let name = folder.file_name().unwrap().display().to_string();
        found.extend(circles.map(|arrow| format!("{name}: {arrow}")));
    }
    assert!(
        found.is_empty(),
        "modules lead back to themselves; move what both need below both:\n{}",
        found.join("\n")
    );
}

/// A crate of modules with these sources.
fn crate_of(sources: &[(&str, &str)]) -> Modules {
    let module = |(place, source): &(&str, &str)| {
        let place = place.split("::").filter(|name| !name.is_empty()).map(str::to_owned).collect();
        (place, Module::read(&syn::parse_file(source).unwrap()))
    };
    Modules(sources.iter().map(module).collect())
}

#[test]
fn a_circle_is_seen_through_what_is_offered_and_in_bodies() {
    let root = ("", "mod high; mod low; pub use high::High;");
    let low = ("low", "pub struct Low; fn f() -> usize { size_of::<crate::High>() }");
    let high = ("high::inner", "use super::super::low::Low; pub struct High(Low);");
    let above = ("high", "mod inner; pub use inner::High;");
    let circle = crate_of(&[root, low, high, above]).circles();
    assert_eq!(circle, ["high::inner names super::super::low::Low", "low names crate::High"]);
}

#[test]
fn one_way_is_no_circle_nor_are_a_module_and_its_parts_nor_tests() {
    let root = ("", "mod high; mod low; pub use high::High;");
    let high =
        ("high", "mod part; use crate::low::Low; use part::Part; pub struct High(Low, Part);");
    let part = ("high::part", "use super::High; pub struct Part; impl High {}");
    let low = ("low", "pub struct Low; #[cfg(test)] mod tests { use crate::High; }");
    assert_eq!(crate_of(&[root, high, part, low]).circles(), [""; 0]);
}
