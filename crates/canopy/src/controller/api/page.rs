//! The description of the API as a page for people.

use serde_json::{Map, Value};
use std::fmt::Write;

const HEAD: &str = "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">\
    <meta name=\"viewport\" content=\"width=device-width\"><title>Canopy's controller</title><style>\
    body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;\
    color:#222;background:#fff}code{background:#f2f2f2;padding:.1em .3em}h2{margin-top:2.5rem}\
    td,th{text-align:left;vertical-align:top;padding:.2rem 1rem .2rem 0}\
    @media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}code{background:#333}\
    a{color:#8cf}}</style>";

/// The page of a description.
pub(super) fn of(description: &Value) -> String {
    let mut page = HEAD.to_owned();
    // Writing to a String cannot fail.
    let text = |at: &str| escaped(description.pointer(at).and_then(Value::as_str).unwrap_or(""));
    let _ = write!(
        page,
        "<h1>{}</h1><p>{}</p><p>For programs: <a href=\"/v1/openapi.json\">openapi.json</a></p>",
        text("/info/title"),
        text("/info/description")
    );
    for (path, ways) in object(description, "/paths") {
        for (method, operation) in ways.as_object().into_iter().flatten() {
            route(&mut page, path, method, operation);
        }
    }
    page.push_str("<h2>Types</h2>");
    for (name, schema) in object(description, "/components/schemas") {
        let about = schema.get("description").and_then(Value::as_str).unwrap_or("");
        let name = escaped(name);
        let _ = write!(page, "<h3 id=\"{name}\">{name}</h3><p>{}</p>", escaped(about));
        fields(&mut page, schema);
    }
    page
}

fn object<'a>(of: &'a Value, at: &str) -> impl Iterator<Item = (&'a String, &'a Value)> {
    of.pointer(at).and_then(Value::as_object).into_iter().flatten()
}

fn route(page: &mut String, path: &str, method: &str, operation: &Value) {
    let summary = operation.get("summary").and_then(Value::as_str).unwrap_or("");
    let (path, method) = (escaped(path), method.to_uppercase());
    let _ = write!(page, "<h2><code>{method} {path}</code></h2><p>{}</p><table>", escaped(summary));
    let parameters = operation.get("parameters").and_then(Value::as_array);
    for parameter in parameters.into_iter().flatten() {
        let text = |field| parameter.get(field).and_then(Value::as_str).unwrap_or("");
        let (name, place) = (escaped(text("name")), escaped(text("in")));
        let about = escaped(text("description"));
        let _ = write!(page, "<tr><td><code>{name}</code><td>{place}<td>{about}");
    }
    if let Some(body) = operation.pointer("/requestBody/content/application~1json/schema") {
        let _ = write!(page, "<tr><td>asked<td>body<td>{}", type_of(body));
    }
    for (status, response) in object(operation, "/responses") {
        let about = response.get("description").and_then(Value::as_str).unwrap_or("");
        let content = response.get("content").and_then(Value::as_object);
        let schema = content.and_then(|content| content.values().next()?.get("schema"));
        let body = schema.map(type_of).unwrap_or_default();
        let status = escaped(status);
        let _ = write!(page, "<tr><td>answered<td>{status}<td>{body} {}", escaped(about));
    }
    page.push_str("</table>");
}

fn fields(page: &mut String, schema: &Value) {
    let needed = schema.get("required").and_then(Value::as_array);
    let is_needed =
        |name: &str| needed.is_some_and(|needed| needed.iter().any(|field| field == name));
    if let Some(names) = schema.get("enum").and_then(Value::as_array) {
        let names = names.iter().filter_map(Value::as_str).map(escaped).collect::<Vec<_>>();
        let _ = write!(page, "<p>One of <code>{}</code></p>", names.join("</code>, <code>"));
    }
    for variant in schema.get("oneOf").and_then(Value::as_array).into_iter().flatten() {
        let about = variant.get("description").and_then(Value::as_str).unwrap_or("");
        let _ = write!(page, "<p>{}</p>", escaped(about));
        fields(page, variant);
    }
    let none = Map::new();
    let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&none);
    page.push_str("<table>");
    for (name, field) in properties {
        let needed = if is_needed(name) { "" } else { "may be left out" };
        let about = field.get("description").and_then(Value::as_str).unwrap_or("");
        let (name, kind, about) = (escaped(name), type_of(field), escaped(about));
        let _ = write!(page, "<tr><td><code>{name}</code><td>{kind}<td>{needed}<td>{about}");
    }
    page.push_str("</table>");
}

/// A type in words; one with a name is a link to it.
fn type_of(schema: &Value) -> String {
    if let Some(name) = schema.get("$ref").and_then(Value::as_str) {
        let name = escaped(name.rsplit('/').next().unwrap_or(name));
        return format!("<a href=\"#{name}\">{name}</a>");
    }
    let any = schema.get("oneOf").or_else(|| schema.get("allOf")).and_then(Value::as_array);
    if let Some(some) = any.and_then(|any| any.iter().find(|one| one.get("$ref").is_some())) {
        return type_of(some);
    }
    match schema.get("type") {
        Some(Value::String(kind)) if kind == "array" => {
            let items = schema.get("items").map(type_of).unwrap_or_default();
            format!("list of {items}")
        }
        Some(Value::String(kind)) => match schema.get("enum").and_then(Value::as_array) {
            Some(names) if names.len() == 1 => escaped(names[0].as_str().unwrap_or(kind)),
            _ => escaped(kind),
        },
        Some(Value::Array(kinds)) => {
            let kinds = kinds.iter().filter_map(Value::as_str).filter(|kind| *kind != "null");
            escaped(&kinds.collect::<Vec<_>>().join(" or "))
        }
        _ => String::new(),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
