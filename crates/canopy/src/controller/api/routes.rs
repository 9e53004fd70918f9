//! Every route of the API. What the macros say here is the description at `/v1/openapi.json`: a
//! route that is not described is not served.

use super::answer::{Ask, Failure, Place, Which};
use super::{Api, Routes, events};
use crate::controller::joins::stopped;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use canopy_api::{
    Accounts, AreasAsk, AreasView, EventView, Health, Joined, KickAllAsk, KickAsk, Kicked,
    LinkView, Links, MemberView, Members, MembersAsk, MoveAsk, MovePlans, NewLink, NewMember,
    NewWorld, Overlay, OverlayAsk, Problem, RelayView, Relays, RelaysToMeasure, RemovalAsk,
    WorldChange, WorldView, Worlds,
};
use canopy_control::Controller;
use utoipa_axum::routes;

type Answered<T> = Result<Json<T>, Failure>;

/// The routes that need the secret.
pub(super) fn all() -> Routes {
    let schemas = utoipa::openapi::ComponentsBuilder::new()
        .schema_from::<Problem>()
        .schema_from::<canopy_api::Wrong>()
        .schema_from::<EventView>()
        .build();
    let described = utoipa::openapi::OpenApiBuilder::new().components(Some(schemas)).build();
    Routes::with_openapi(described)
        .routes(routes!(list_worlds, create_world))
        .routes(routes!(show_world, set_world, delete_world))
        .routes(routes!(show_areas, set_areas))
        .routes(routes!(move_world, plan_move))
        .routes(routes!(list_members, admit_member, kick_members))
        .routes(routes!(show_member, kick_member))
        .routes(routes!(list_relays))
        .routes(routes!(near_relays))
        .routes(routes!(show_relay, remove_relay))
        .routes(routes!(drain_relay))
        .routes(routes!(undrain_relay))
        .routes(routes!(allow_relay))
        .routes(routes!(list_links, add_link))
        .routes(routes!(remove_link))
        .routes(routes!(keep_link))
        .routes(routes!(list_accounts))
        .routes(routes!(show_overlay))
        .routes(routes!(events::stream))
}

/// The route that needs none: who watches over processes has no secrets.
pub(super) fn health_route() -> Routes {
    Routes::new().routes(routes!(health))
}

/// Asks the controller.
async fn ask<T: Send + 'static>(
    api: Api,
    question: impl FnOnce(&mut Controller) -> Result<T, Problem> + Send + 'static,
) -> Answered<T> {
    let answer = api.handle.ask(|controller, _| question(controller)).await;
    Ok(Json(answer.map_err(stopped)??))
}

/// Asks for a change, and answers once it outlasts a crash.
async fn change<T: Send + 'static>(
    api: Api,
    question: impl FnOnce(&mut Controller) -> Result<T, Problem> + Send + 'static,
) -> Answered<T> {
    let answer = api.handle.change(|controller, _| question(controller)).await;
    Ok(Json(answer.map_err(stopped)??))
}

/// The worlds
#[utoipa::path(get, path = "/v1/worlds", tag = "worlds",
    responses((status = 200, description = "All worlds", body = Worlds)))]
async fn list_worlds(State(api): State<Api>) -> Answered<Worlds> {
    ask(api, |controller| Ok(canopy_api::worlds(controller))).await
}

/// Create a world
#[utoipa::path(post, path = "/v1/worlds", tag = "worlds", request_body = NewWorld,
    responses((status = 201, description = "It is there", body = WorldView)))]
async fn create_world(
    State(api): State<Api>,
    Ask(new): Ask<NewWorld>,
) -> Result<(StatusCode, Json<WorldView>), Failure> {
    let made = change(api, move |controller| canopy_api::create_world(controller, &new)).await?;
    Ok((StatusCode::CREATED, made))
}

/// A world, with its comtrees, their trees, and why they are so
#[utoipa::path(get, path = "/v1/worlds/{world}", tag = "worlds",
    params(("world" = String, Path, description = "Its name; '/' in it is written %2F")),
    responses((status = 200, description = "The world", body = WorldView)))]
async fn show_world(State(api): State<Api>, Place(world): Place<String>) -> Answered<WorldView> {
    ask(api, move |controller| canopy_api::world(controller, &world)).await
}

/// Change a world; what is left out stays
#[utoipa::path(patch, path = "/v1/worlds/{world}", tag = "worlds", request_body = WorldChange,
    params(("world" = String, Path, description = "Its name")),
    responses((status = 200, description = "The world as it is now", body = WorldView)))]
async fn set_world(
    State(api): State<Api>,
    Place(world): Place<String>,
    Ask(ask): Ask<WorldChange>,
) -> Answered<WorldView> {
    change(api, move |controller| canopy_api::set_world(controller, &world, &ask)).await
}

/// Move a world to other trees, without loss
#[utoipa::path(post, path = "/v1/worlds/{world}/move", tag = "worlds",
    params(("world" = String, Path, description = "Its name"), MoveAsk),
    responses((status = 200, description = "The world as it is when that begins", body = WorldView)))]
async fn move_world(
    State(api): State<Api>,
    Place(world): Place<String>,
    Which(which): Which<MoveAsk>,
) -> Answered<WorldView> {
    change(api, move |controller| canopy_api::move_world(controller, &world, &which)).await
}

/// What a move of a world would do: the trees that it would get, and what they cost
#[utoipa::path(get, path = "/v1/worlds/{world}/move", tag = "worlds",
    params(("world" = String, Path, description = "Its name"), MoveAsk),
    responses((status = 200, description = "Nothing has changed", body = MovePlans)))]
async fn plan_move(
    State(api): State<Api>,
    Place(world): Place<String>,
    Which(which): Which<MoveAsk>,
) -> Answered<MovePlans> {
    ask(api, move |controller| canopy_api::plan_move(controller, &world, &which)).await
}

/// Delete a world: nobody enters it any more, and its members are sent away
#[utoipa::path(delete, path = "/v1/worlds/{world}", tag = "worlds",
    params(("world" = String, Path, description = "Its name")),
    responses((status = 202, description = "It is gone when its members are")))]
async fn delete_world(
    State(api): State<Api>,
    Place(world): Place<String>,
) -> Result<StatusCode, Failure> {
    let Json(()) =
        change(api, move |controller| canopy_api::delete_world(controller, &world)).await?;
    Ok(StatusCode::ACCEPTED)
}

/// The areas of a world, and how many members are in each
#[utoipa::path(get, path = "/v1/worlds/{world}/areas", tag = "worlds",
    params(("world" = String, Path, description = "Its name")),
    responses((status = 200, description = "The areas in force", body = AreasView)))]
async fn show_areas(State(api): State<Api>, Place(world): Place<String>) -> Answered<AreasView> {
    ask(api, move |controller| canopy_api::areas(controller, &world)).await
}

/// Divide a world into areas, or otherwise than before; who follows them is led over without loss
#[utoipa::path(put, path = "/v1/worlds/{world}/areas", tag = "worlds", request_body = AreasAsk,
    params(("world" = String, Path, description = "Its name")),
    responses((status = 200, description = "The areas in force", body = AreasView)))]
async fn set_areas(
    State(api): State<Api>,
    Place(world): Place<String>,
    Ask(ask): Ask<AreasAsk>,
) -> Answered<AreasView> {
    let (ask, ground) = tokio::task::spawn_blocking(move || {
        let ground = canopy_api::ground(&ask);
        (ask, ground)
    })
    .await
    .map_err(stopped)?;
    let ground = ground?;
    let set = move |controller: &mut Controller, now| {
        canopy_api::set_areas(controller, now, &world, &ask, ground)
    };
    Ok(Json(api.handle.change(set).await.map_err(stopped)??))
}

/// The members of a world
#[utoipa::path(get, path = "/v1/worlds/{world}/members", tag = "members",
    params(("world" = String, Path, description = "The world's name"), MembersAsk),
    responses((status = 200, description = "At most a thousand", body = Members)))]
async fn list_members(
    State(api): State<Api>,
    Place(world): Place<String>,
    Which(which): Which<MembersAsk>,
) -> Answered<Members> {
    ask(api, move |controller| canopy_api::members(controller, &world, &which)).await
}

/// Let somebody into a world, as a backend that answers for them; again, to renew the lease
#[utoipa::path(post, path = "/v1/worlds/{world}/members", tag = "members", request_body = NewMember,
    params(("world" = String, Path, description = "The world's name")),
    responses((status = 200, description = "Its relay takes it", body = Joined)))]
async fn admit_member(
    State(api): State<Api>,
    Place(world): Place<String>,
    Ask(new): Ask<NewMember>,
) -> Answered<Joined> {
    Ok(Json(api.joins.admit_for(world, new).await?))
}

/// Send all members away who are called so, and keep them out for a while
#[utoipa::path(delete, path = "/v1/worlds/{world}/members", tag = "members",
    params(("world" = String, Path, description = "The world's name"), KickAllAsk),
    responses((status = 202, description = "Their relays are being told", body = Kicked)))]
async fn kick_members(
    State(api): State<Api>,
    Place(world): Place<String>,
    Which(ask): Which<KickAllAsk>,
) -> Result<(StatusCode, Json<Kicked>), Failure> {
    let kick =
        move |controller: &mut Controller, now| canopy_api::kick_all(controller, now, &world, &ask);
    let kicked = api.handle.change(kick).await.map_err(stopped)??;
    Ok((StatusCode::ACCEPTED, Json(kicked)))
}

/// A member of a world
#[utoipa::path(get, path = "/v1/worlds/{world}/members/{address}", tag = "members",
    params(("world" = String, Path, description = "The world's name"),
           ("address" = String, Path, description = "Its address, such as 28672.64")),
    responses((status = 200, description = "The member", body = MemberView)))]
async fn show_member(
    State(api): State<Api>,
    Place((world, address)): Place<(String, String)>,
) -> Answered<MemberView> {
    ask(api, move |controller| canopy_api::member(controller, &world, &address)).await
}

/// Send a member away, and keep it out for a while
#[utoipa::path(delete, path = "/v1/worlds/{world}/members/{address}", tag = "members",
    params(("world" = String, Path, description = "The world's name"),
           ("address" = String, Path, description = "Its address, such as 28672.64"), KickAsk),
    responses((status = 202, description = "Its relay is being told")))]
async fn kick_member(
    State(api): State<Api>,
    Place((world, address)): Place<(String, String)>,
    Which(how): Which<KickAsk>,
) -> Result<StatusCode, Failure> {
    let kick = move |controller: &mut Controller, now| {
        canopy_api::kick(controller, now, &world, &address, &how)
    };
    api.handle.change(kick).await.map_err(stopped)??;
    Ok(StatusCode::ACCEPTED)
}

/// The relays
#[utoipa::path(get, path = "/v1/relays", tag = "relays",
    responses((status = 200, description = "All relays", body = Relays)))]
async fn list_relays(State(api): State<Api>) -> Answered<Relays> {
    ask(api, |controller| Ok(canopy_api::relays(controller))).await
}

/// The relays that somebody should measure before joining
#[utoipa::path(get, path = "/v1/relays-to-measure", tag = "relays",
    responses((status = 200, description = "At most 16", body = RelaysToMeasure)))]
async fn near_relays(State(api): State<Api>) -> Answered<RelaysToMeasure> {
    Ok(Json(api.joins.relays().await?))
}

/// A relay
#[utoipa::path(get, path = "/v1/relays/{relay}", tag = "relays",
    params(("relay" = String, Path, description = "Its name; '/' in it is written %2F")),
    responses((status = 200, description = "The relay", body = RelayView)))]
async fn show_relay(State(api): State<Api>, Place(relay): Place<String>) -> Answered<RelayView> {
    ask(api, move |controller| canopy_api::relay(controller, &relay)).await
}

/// Let a relay take nobody new
#[utoipa::path(post, path = "/v1/relays/{relay}/drain", tag = "relays",
    params(("relay" = String, Path, description = "Its name")),
    responses((status = 200, description = "The relay as it is now", body = RelayView)))]
async fn drain_relay(State(api): State<Api>, Place(relay): Place<String>) -> Answered<RelayView> {
    change(api, move |controller| canopy_api::drain(controller, &relay, true)).await
}

/// Let a relay take members again; one that is being removed stays
#[utoipa::path(post, path = "/v1/relays/{relay}/undrain", tag = "relays",
    params(("relay" = String, Path, description = "Its name")),
    responses((status = 200, description = "The relay as it is now", body = RelayView)))]
async fn undrain_relay(State(api): State<Api>, Place(relay): Place<String>) -> Answered<RelayView> {
    change(api, move |controller| canopy_api::drain(controller, &relay, false)).await
}

/// Let a relay register again that was removed
#[utoipa::path(post, path = "/v1/relays/{relay}/allow", tag = "relays",
    params(("relay" = String, Path, description = "The name that it had")),
    responses((status = 204, description = "It may register, as a new relay")))]
async fn allow_relay(
    State(api): State<Api>,
    Place(relay): Place<String>,
) -> Result<StatusCode, Failure> {
    let Json(()) =
        change(api, move |controller| canopy_api::allow_relay(controller, &relay)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Take a relay away for good; it drains, and its members and worlds move to others first, without loss
#[utoipa::path(delete, path = "/v1/relays/{relay}", tag = "relays",
    params(("relay" = String, Path, description = "Its name"), RemovalAsk),
    responses((status = 202, description = "It is gone once its members and worlds are elsewhere"),
        (status = 204, description = "It is gone")))]
async fn remove_relay(
    State(api): State<Api>,
    Place(relay): Place<String>,
    Which(ask): Which<RemovalAsk>,
) -> Result<StatusCode, Failure> {
    let remove =
        move |controller: &mut Controller| canopy_api::remove_relay(controller, &relay, &ask);
    Ok(removed(change(api, remove).await?))
}

/// Whether what was removed is gone already.
fn removed(Json(is_gone): Json<bool>) -> StatusCode {
    if is_gone { StatusCode::NO_CONTENT } else { StatusCode::ACCEPTED }
}

/// Take a link away for good; worlds that run over it move off it first, without loss
#[utoipa::path(delete, path = "/v1/links/{link}", tag = "links",
    params(("link" = String, Path, description = "Its number"), RemovalAsk),
    responses((status = 202, description = "It is gone once worlds have moved off it"),
        (status = 204, description = "It is gone")))]
async fn remove_link(
    State(api): State<Api>,
    Place(link): Place<String>,
    Which(ask): Which<RemovalAsk>,
) -> Result<StatusCode, Failure> {
    let remove =
        move |controller: &mut Controller| canopy_api::remove_link(controller, &link, &ask);
    Ok(removed(change(api, remove).await?))
}

/// Keep a link that is being removed: worlds may run over it again
#[utoipa::path(post, path = "/v1/links/{link}/keep", tag = "links",
    params(("link" = String, Path, description = "Its number")),
    responses((status = 200, description = "The link as it is now", body = LinkView)))]
async fn keep_link(State(api): State<Api>, Place(link): Place<String>) -> Answered<LinkView> {
    change(api, move |controller| canopy_api::keep_link(controller, &link)).await
}

/// The links
#[utoipa::path(get, path = "/v1/links", tag = "links",
    responses((status = 200, description = "All links", body = Links)))]
async fn list_links(State(api): State<Api>) -> Answered<Links> {
    ask(api, |controller| Ok(canopy_api::links(controller))).await
}

/// Join two relays by a link
#[utoipa::path(post, path = "/v1/links", tag = "links", request_body = NewLink,
    responses((status = 201, description = "It is there", body = LinkView)))]
async fn add_link(
    State(api): State<Api>,
    Ask(new): Ask<NewLink>,
) -> Result<(StatusCode, Json<LinkView>), Failure> {
    let made = change(api, move |controller| canopy_api::add_link(controller, &new)).await?;
    Ok((StatusCode::CREATED, made))
}

/// What is reserved and free, of every link and relay
#[utoipa::path(get, path = "/v1/accounts", tag = "overview",
    responses((status = 200, description = "All accounts", body = Accounts)))]
async fn list_accounts(State(api): State<Api>) -> Answered<Accounts> {
    ask(api, |controller| Ok(canopy_api::accounts(controller))).await
}

/// Relays, links with what is reserved of them, and the trees of a world with the links of its meshes: what a map shows
#[utoipa::path(get, path = "/v1/overlay", tag = "overview", params(OverlayAsk),
    responses((status = 200, description = "The overlay", body = Overlay)))]
async fn show_overlay(
    State(api): State<Api>,
    Which(which): Which<OverlayAsk>,
) -> Answered<Overlay> {
    ask(api, move |controller| Ok(canopy_api::overlay(controller, which.world.as_deref()))).await
}

/// Whether the controller runs, and how much it has to do
#[utoipa::path(get, path = "/v1/health", tag = "overview",
    responses((status = 200, description = "It runs", body = Health)))]
async fn health(State(api): State<Api>) -> Answered<Health> {
    ask(api, |controller| Ok(canopy_api::health(controller))).await
}
