// The page of a node: asks for its status and its events once a second and shows them, in the words of `starling top`. What it shows came
// from strangers in part, so every text goes into the page as text, never as HTML. Nothing is kept when the page closes.

const kLookEvery = 1000;         // ms, as all times here
const kPatience = 5000;          // for an answer
const kKept = 600_000;           // how much of the past the curves show
const kShortest = 10_000;        // what they show at least
const kRates = 10_000;           // rates are averages of so long
const kGap = 5000;               // without a look for so long a curve is interrupted
const kSayEvery = 60_000;        // a screen reader hears the figures this often, and whenever the phase changes
const kMostRows = 200;           // of a table; more than anybody reads
const kMostDots = 64;            // members in the picture
const kMostNames = 20;           // in it

const by_id = (id) => document.getElementById(id);
let token = '';
let looks = [];                  // what the curves are made of, the oldest first
let events = [];                 // the newest last
let status = null;               // the newest
let lost_at = '';                // when the node stopped answering
let said = {at: -Infinity, phase: ''};
let configured = '';             // process and settings that the configuration is of

// Replaces what could hide or turn a text by \xNN, byte by byte, as the program itself does (node/printable.h).
const kHidden = /[\0-\x1f\x7f-\x9f\xad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\u{e0000}-\u{10ffff}]/gu;
function printable(text) {
  const hex = (character) => [...new TextEncoder().encode(character)].map((byte) => '\\x' + byte.toString(16).padStart(2, '0')).join('');
  return text.replace(kHidden, hex);
}

const is_number = (value) => typeof value === 'number';
const number = (value) => is_number(value) ? value : 0;
const fixed = (value, places) => number(value).toFixed(places);
// So many digits, or all those before the point; below 1e-4 with an exponent. As the program does it (node/observe/fields.cc).
function digits(value, count) {
  if (value === 0) return '0';
  const [head, exponent] = value.toExponential(count - 1).split('e').map(Number);
  if (exponent < -4 || exponent >= 15) return `${head}e${exponent}`;
  return String(Number(value.toFixed(Math.max(0, count - 1 - exponent))));
}
function show(value) {
  if (typeof value === 'string' && value !== '') return printable(value);
  if (is_number(value)) return Number.isSafeInteger(value) ? String(value) : digits(value, 4);
  return '-';
}
const percent = (share) => `${fixed(share * 100, 1)} %`;
const unit = (value, name) => is_number(value) ? `${digits(value, 3)} ${name}` : '-';
const short = (id) => show(id).slice(0, 8);
const two = (value) => String(value).padStart(2, '0');
const clock_text = (time) => [time.getHours(), time.getMinutes(), time.getSeconds()].map(two).join(':');

function show_bytes(count) {
  const units = ['B', 'kB', 'MB', 'GB', 'TB'];
  let bytes = number(count);
  let i = 0;
  for (; bytes >= 1000 && i + 1 < units.length; ++i) bytes /= 1000;
  return `${bytes.toFixed(i === 0 || bytes >= 100 ? 0 : 1)} ${units[i]}`;
}

function show_left(seconds) {
  const whole = Math.round(number(seconds));
  if (whole >= 3600) return `${Math.floor(whole / 3600)}h${two(Math.floor(whole / 60) % 60)}m`;
  return whole >= 60 ? `${Math.floor(whole / 60)}m${two(whole % 60)}s` : `${whole}s`;
}

// Touches the page only where something changed, so that a selection stays and nothing is read out twice.
function put(element, text) {
  const node = typeof element === 'string' ? by_id(element) : element;
  if (node.textContent !== text) node.textContent = text;
  return node;
}

// As many children as there are items, each made once and shown again.
function put_list(parent, items, tag, put_item) {
  while (parent.children.length > items.length) parent.lastElementChild.remove();
  const make = () => parent.appendChild(document.createElementNS(parent.namespaceURI, tag));
  items.forEach((item, i) => put_item(parent.children[i] ?? make(), item));
}

function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes))
    if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

// Rows of texts; the second cell says a state. `elsewhere` rows are not even known here.
function put_rows(id, rows, nobody, elsewhere = 0) {
  const shown = rows.slice(0, kMostRows);
  const more = rows.length - shown.length + elsewhere;
  if (rows.length === 0) shown.push([nobody]);
  if (more > 0) shown.push([`and ${more} more: starling ${id} shows all`]);
  put_list(by_id(id), shown, 'tr', (row, cells) => put_list(row, cells, 'td', (cell, text) => {
    put(cell, text);
    if (cell === row.children[1]) cell.dataset.state = text;
  }));
}

// Bytes a second between two looks; nothing where another process counts anew.
function between(then, old, now, fresh) {
  const seconds = (now - then) / 1000;
  if (!old || seconds <= 0 || fresh.bytes_sent < old.bytes_sent || fresh.bytes_received < old.bytes_received) return null;
  return {up: (fresh.bytes_sent - old.bytes_sent) / seconds, down: (fresh.bytes_received - old.bytes_received) / seconds};
}

function remember(now) {
  const last = looks.at(-1);
  // Another process: of another node at this address, or of this one, however long it has been up.
  if (last && last.instance !== status.node.instance) [looks, events] = [[], []];
  while (looks.length > 0 && now - looks[0].at > kKept) looks.shift();
  const look = {
    at: now, instance: status.node.instance, traffic: status.traffic,
    edges: new Map(status.neighbours.map((edge) => [edge.id, edge])),
    loss: status.train.loss, speed: status.train.images_per_second, disagreement: status.disagreement_ratio,
  };
  const recent = looks.filter((old) => now - old.at < kRates);
  const rates = recent.length > 0 ? between(recent[0].at, recent[0].traffic, now, look.traffic) : null;
  looks.push(Object.assign(look, rates));
  return recent;
}

const speed_text = (value) => `${fixed(value, 0)} img/s`;
const rate_text = (value) => `${show_bytes(value)}/s`;
// What each curve is of; from_zero where a height means something by itself.
const kCurves = [
  {name: 'loss', of: ['loss'], text: (value) => fixed(value, 4)},
  {name: 'speed', of: ['speed'], text: speed_text, from_zero: true},
  {name: 'disagreement', of: ['disagreement'], text: show},
  {name: 'bytes', of: ['up', 'down'], text: rate_text, from_zero: true},
];

// The commands of an SVG path through the looks that have the value, with a gap where there was no look.
function path_of(key, from, span, low, high) {
  let path = '';
  let before = -Infinity;
  for (const look of looks) {
    if (!is_number(look[key])) continue;
    const x = (look.at - from) / span * 600;
    const y = high > low ? 120 - (look[key] - low) / (high - low) * 120 : 60;
    path += look.at - before > kGap ? `M${x.toFixed(1)} ${y.toFixed(1)}h0` : `L${x.toFixed(1)} ${y.toFixed(1)}`;
    before = look.at;
  }
  return path;
}

function draw(figure, curve, now) {
  const part = (selector) => figure.querySelector(selector);
  const values = curve.of.flatMap((key) => looks.map((look) => look[key])).filter(is_number);
  put(part('.what'), curve.name);
  const newest = curve.of.map((key) => is_number(looks.at(-1)[key]) ? curve.text(looks.at(-1)[key]) : '-');
  const now_text = put(part('.now'), curve.of.length > 1 ? `up ${newest[0]}, down (dashed) ${newest[1]}` : newest[0]).textContent;
  const low = curve.from_zero ? 0 : Math.min(...values);
  const high = Math.max(...values);
  const span = Math.max(now - looks[0].at, kShortest);
  const ago = `${show_left(span / 1000)} ago`;
  put(part('.high'), values.length > 0 ? curve.text(high) : '');
  put(part('.low'), values.length > 0 ? curve.text(low) : '');
  put(part('.from'), ago);
  const range = values.length > 0 ? `between ${curve.text(Math.min(...values))} and ${curve.text(high)}` : 'nothing yet';
  put(part('title'), `${curve.name} since ${ago}: now ${now_text}, ${range}`);
  curve.of.forEach((key, i) => figure.querySelectorAll('path')[i].setAttribute('d', path_of(key, now - span, span, low, high)));
}

function rates_of(edge, recent, now) {
  const old = recent.find((look) => look.edges.has(edge.id));   // an edge may be younger than the window
  return old ? between(old.at, old.edges.get(edge.id), now, edge) : null;
}

function neighbour_cells(edge, recent, now) {
  const rates = rates_of(edge, recent, now);
  const note = is_number(edge.closed_for_s) ? `no edge for ${show_left(edge.closed_for_s)}`
    : edge.refused_why !== '' ? `refused: ${show(edge.refused_why)}` : show(edge.level_reason);
  return [show(edge.name), edge.edge === 'lost' ? 'lost' : show(edge.state), unit(edge.rtt_ms, 'ms'), show(edge.level),
    unit(edge.last_exchange_s, 's'), show(edge.exchanges), rates ? rate_text(rates.up) : '-', rates ? rate_text(rates.down) : '-',
    show(edge.disagreement_ratio), note];
}

const member_cells = (member) =>
  [show(member.name), show(member.state), show(member.address), show(member.samples), member.self ? 'this node' : show(member.reason)];

function members_by_state() {
  const states = ['joining', 'alive', 'suspect', 'dead', 'left'];
  const counts = states.map((state) => [status.members_by_state[state], state]);
  return counts.filter(([count]) => count > 0).map(([count, state]) => `${count} ${state}`).join(', ') || '-';
}

// A shape for each state, so that colours are not needed, around a point.
const kShapes = {
  alive: 'm-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z', joining: 'm-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z', suspect: 'm0-5l5 9h-10z',
  dead: 'm-4-4l8 8m0-8l-8 8', left: 'm-3-3h6v6h-6z', hub: 'm-8 0a8 8 0 1 0 16 0a8 8 0 1 0-16 0zm4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z',
};
const name_of = (one) => show(one.name) === '-' ? short(one.id) : show(one.name);
function brief(text) {
  const letters = [...text];
  return letters.length > 13 ? [...letters.slice(0, 8), '…', ...letters.slice(-4)].join('') : text;
}

// Whom the picture shows: this node in the middle, the others around it by name; where there are too many, neighbours first.
function pictured() {
  const edges = new Map(status.neighbours.filter((edge) => edge.edge !== 'closed').map((edge) => [edge.id, edge]));
  const known = new Map([...status.neighbours, ...status.members].map((one) => [one.id, one]));
  const names = new Map([...known].map(([id, one]) => [id, name_of(one) + id]));
  const by_name = (a, b) => names.get(a.id) < names.get(b.id) ? -1 : 1;
  const rank = (one) => one.self ? 0 : edges.has(one.id) ? 1 : ['alive', 'left'].includes(one.state) ? 3 : 2;
  const is_far = (one) => rank(one) > 1;
  const all = [...known.values()].sort((a, b) => is_far(a) - is_far(b) || by_name(a, b)).slice(0, kMostDots);
  const ring = all.filter((one) => !one.self).sort(by_name).map((one, i, {length}) => {
    const angle = 2 * Math.PI * i / length - Math.PI / 2;
    return {one, i, edge: edges.get(one.id), side: Math.cos(angle), below: Math.sin(angle), reach: 100};
  });
  // A name that would lie on another one is left out: neighbours have theirs first, then those in trouble.
  const apart = (a, b) => Math.min(Math.abs(a.i - b.i), ring.length - Math.abs(a.i - b.i)) >= ring.length / kMostNames;
  const named = [];
  for (const dot of ring.toSorted((a, b) => rank(a.one) - rank(b.one)))
    if (named.every((other) => apart(dot, other))) named.push(dot);
  const middle = all.filter((one) => one.self).map((one) => ({one, side: 0, below: 1, reach: 0}));
  return [...ring, ...middle].map((dot) => ({...dot, named: dot.one.self || named.includes(dot)}));
}

function show_picture(recent, now) {
  const dots = pictured().map((dot) => ({...dot, x: 190 + dot.reach * dot.side, y: 140 + dot.reach * dot.below}));
  const ends = dots.filter((dot) => dot.edge);
  put_list(by_id('edges'), ends, 'line', (line, dot) => {
    const rates = rates_of(dot.edge, recent, now);
    const width = 1 + 1.2 * Math.log10(1 + (rates ? rates.up + rates.down : 0) / 1000);
    const [x2, y2] = [dot.x.toFixed(1), dot.y.toFixed(1)];
    set(line, {x1: 190, y1: 140, x2, y2, 'stroke-width': width.toFixed(1), 'data-state': dot.edge.edge});
  });
  const template = by_id('dot').content.querySelector('g');
  put_list(by_id('dots'), dots, 'g', (group, {one, named, x, y, side, below}) => {
    if (group.children.length === 0) group.append(...template.cloneNode(true).children);
    const [title, path, text] = group.children;
    set(group, {class: one.self ? 'hub' : '', 'data-state': one.state});
    put(title, `${name_of(one)}: ${show(one.state)}`);
    set(path, {d: `M${x.toFixed(1)} ${y.toFixed(1)}${kShapes[one.self ? 'hub' : one.state] ?? ''}`});
    const anchor = Math.abs(side) < 0.1 ? 'middle' : side > 0 ? 'start' : 'end';
    set(text, {x: (x + 11 * side).toFixed(1), y: (y + (one.self ? 19 : 15) * below).toFixed(1), 'text-anchor': anchor});
    put(text, named ? brief(name_of(one)) : '');
  });
  const left_out = status.members.length + status.members_left_out - dots.length;
  put('not_drawn', left_out > 0 ? `${left_out} more members are not drawn.` : '');
  const to = ends.map((dot) => `${name_of(dot.one)}${dot.edge.edge === 'lost' ? ' (lost)' : ''}`).join(', ');
  put('in_words', `${dots.length} members, this node in the middle; its edges: ${to || 'none'}`);
}

// The events that are new, after those that are kept.
function take_events(fresh) {
  events = [...events, ...fresh].slice(-kMostRows);
  by_id('happened').hidden = false;
  put_list(by_id('events'), events.toReversed(), 'li', (item, event) => {
    item.dataset.level = show(event.level);
    if (item.children.length === 0) item.append(...['time', 'b', 'span'].map((tag) => document.createElement(tag)));
    const [time, level, text] = item.children;
    time.dateTime = event.time;
    put(time, clock_text(new Date(event.time)));
    put(level, show(event.level));
    put(text, `${show(event.event)} ${printable(event.text)}`);
  });
}

const configuration_now = () => `${status.node.instance} ${status.swarm.fingerprint}`;

async function show_configuration() {
  configured = configuration_now();
  const answer = await ask('/api/v1/config');
  if (answer === null) configured = '';
  if (answer?.code !== 200) {
    put('configured', answer === null ? 'the node does not answer' : `the node answers ${answer.code}: ${show(answer.body.error)}`);
    return;
  }
  const {keys, settings} = answer.body;
  const from = ({where, shadows}) => show(where) + (shadows.length > 0 ? ` (shadows ${shadows.map(show).join(', ')})` : '');
  const rows = keys.map((key) => [show(key.key), show(key.value), from(key)]);
  put_rows('keys', rows, 'no key');
  const swarm = Object.entries(settings).map(([name, value]) => `${show(name)} ${show(value)}`).join(', ');
  put('configured', `what all nodes of this swarm train: ${swarm || 'not known yet'}`);
}

// How the run ended for a node that answers no more; empty where it ought to answer.
function end_sentence() {
  const {state, identical, participants} = status?.consensus ?? {};
  if (state === 'certified' || state === 'adopted')
    return `the run has ended: final consensus ${state}, ${identical}/${participants.length} replicas identical`;
  return status?.phase === 'leaving' ? 'the node has left the swarm' : '';
}

// What may hold up the final consensus: how far the protocol is, and who took part and is not there.
function show_agreement() {
  const {state, phase, bytes_left, bytes_total, reason, missing} = status.consensus;
  const at_work = ['agreeing', 'reducing', 'certifying', 'failed'].includes(state);
  const left = bytes_total > 0 ? `, ${show_bytes(bytes_left)} of ${show_bytes(bytes_total)} left` : '';
  const given_up = reason === '' ? '' : `; the last epoch was given up: ${show(reason)}`;
  put('agreement', at_work ? `phase ${show(phase)}${left}${given_up}` : '');
  const away = missing.slice(0, kMostRows).map((one) => `${name_of(one)} (${show(one.state)})`);
  put('missing', at_work && away.length > 0 ? `missing: ${away.join(', ')}` : '');
}

function show_end() {
  const {state, epoch, hash, identical, participants} = status.consensus;
  by_id('end').hidden = state === 'none';
  by_id('end').className = state === 'failed' ? 'failed' : '';
  put('consensus', show(state));
  put('votes', `epoch ${show(epoch)}, ${participants.length} participants, ${show(identical)} identical`);
  put('hash', hash === '' ? '' : `blake2b ${show(hash)}`);
  const names = new Map(status.members.map((member) => [member.id, member.name]));
  show_agreement();
  put('participants', participants.slice(0, kMostRows).map((id) => show(names.get(id) || id.slice(0, 8))).join(', '));
}

// As `starling status` says both (node/observe/fields.cc).
function show_way_in() {
  const {join, reachable, address} = status;
  by_id('joining').hidden = join === null;
  const state = join?.bytes_total > 0
    ? ` ${show_bytes(join.bytes_done)} of ${show_bytes(join.bytes_total)} from ${short(join.sponsor)}` : '';
  put('join', `${show(join?.phase)}${state}`);
  by_id('not_reachable').hidden = reachable !== 'no';
  put('reachable', `no: open or forward TCP ${show(address.split(':').at(-1))}, or --advertise HOST:PORT; ` +
                   'it trains through the sessions it opens');
}

function show_figures() {
  const {progress, train, eval: evaluation, traffic, period, host} = status;
  const left = progress.left_s > 0 ? show_left(progress.left_s) : '-';
  const done = percent(progress.share);
  const loss = is_number(train.loss) ? fixed(train.loss, 4) : '-';
  const accuracy = evaluation ? `${fixed(evaluation.accuracy_ratio * 100, 2)} %` : '-';
  const speed = speed_text(train.images_per_second);
  put('speed', speed);
  put('swarm_speed', `swarm ${fixed(train.swarm_images_per_second, 0)}`);
  put('loss', loss);
  put('accuracy', accuracy);
  put('evaluated', evaluation ? `${show(evaluation.of)}, step ${show(evaluation.step)}` : '');
  put('left', left);
  put('done', `${done}  epoch ${fixed(progress.epoch, 2)}  step ${show(progress.step)}`);
  by_id('share').value = number(progress.share);
  put('swarm', `${members_by_state()}, ${show(progress.swarm_samples)} samples, disagreement ${show(status.disagreement_ratio)}, ` +
               `offers every ${show(period.steps)} steps`);
  put('net', `${show(status.address)}, sent ${show_bytes(traffic.bytes_sent)}, received ${show_bytes(traffic.bytes_received)}, ` +
             `queued ${show_bytes(traffic.queued_bytes)}`);
  put('host', `${fixed(host.cpu_ratio, 2)} cores, ${show_bytes(host.rss_bytes)}, ${show(train.device)} ${show(train.precision)}, ` +
              `batch ${show(train.batch)}, learning rate ${show(train.learning_rate)}`);
  put('waits', `gossip ${percent(train.gossip_wait_ratio)}, data ${percent(train.data_wait_ratio)}`);
  document.title = `${done} ${show(status.node.name)} - starling`;
  return `${show(status.phase)}, ${done}, ${speed}, loss ${loss}, accuracy ${accuracy}, left ${left}`;
}

function show_status() {
  const now = performance.now();
  const recent = remember(now);
  put('name', show(status.node.name));
  put('id', short(status.node.id));
  put('phase', show(status.phase));
  put('where', `swarm ${short(status.swarm.id)}  ${show(status.model.name)}  up ${show_left(status.node.uptime_s)}`);
  put_list(by_id('warnings'), status.warnings, 'li', (item, warning) => put(item, show(warning)));
  const summary = show_figures();
  if (now - said.at >= kSayEvery || said.phase !== status.phase) {
    said = {at: now, phase: status.phase};
    put('summary', summary);
  }
  show_way_in();
  show_end();
  if (by_id('configuration').open && configured !== configuration_now()) show_configuration();
  const template = by_id('curve').content.firstElementChild;
  put_list(by_id('curves'), kCurves, 'figure', (figure, curve) => {
    if (figure.children.length === 0) figure.append(...template.cloneNode(true).children);
    draw(figure, curve, now);
  });
  show_picture(recent, now);
  put_rows('neighbours', status.neighbours.map((edge) => neighbour_cells(edge, recent, now)), 'no edge yet');
  put_rows('members', status.members.map(member_cells), 'nobody yet', status.members_left_out);
  by_id('node').hidden = false;
}

function show_contact(text, lost) {
  put('contact', text).className = lost ? 'lost' : '';
  document.body.className = lost ? 'lost' : '';
}

function ask_for_token() {
  by_id('node').hidden = true;
  const again = token === '' ? '' : 'That was not the token. ';
  put('asks', again + 'The node wants its token: the text in the file that http.token_file names.');
  token = '';
  by_id('door').hidden = false;
  by_id('token').focus();
  show_contact('waiting for the token', false);
}

// The code and the object of the node's answer; null where none came.
async function ask(path) {
  try {
    const headers = token === '' ? {} : {Authorization: `Bearer ${token}`};
    const answer = await fetch(path, {headers, cache: 'no-store', signal: AbortSignal.timeout(kPatience)});
    return {code: answer.status, body: await answer.json()};
  } catch {
    return null;
  }
}

async function look() {
  const answer = await ask(`/api/v1/status?members=${kMostRows}`);
  try {
    if (answer !== null) lost_at = '';
    if (answer === null) {
      lost_at ||= clock_text(new Date());
      const end = end_sentence();
      show_contact(`${end === '' ? '' : end + '; '}lost contact at ${lost_at}, trying again`, end === '');
    } else if (answer.code === 401) {
      ask_for_token();
    } else if (answer.code !== 200) {
      show_contact(`the node answers ${answer.code}: ${show(answer.body.error)}`, true);
    } else {
      status = answer.body;
      show_status();
      const news = await ask(`/api/v1/events?after=${events.at(-1)?.seq ?? 0}`);
      if (news?.code === 200) take_events(news.body.events);
      show_contact('live', false);
    }
  } finally {
    if (by_id('door').hidden) setTimeout(look, kLookEvery);   // otherwise a token sets it going again
  }
}

by_id('configuration').addEventListener('toggle', (event) => event.target.open && show_configuration());
by_id('door').addEventListener('submit', (event) => {
  event.preventDefault();
  token = by_id('token').value;
  by_id('token').value = '';
  by_id('door').hidden = true;
  look();
});
look();
