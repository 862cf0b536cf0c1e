"""Names for the sample corpus. The people and the organisations are invented.

No name is also a common word or a name of another kind (no Will, no Grace, no Austin): what the
grammar writes in small letters must never be an entity that nobody marked.
"""


def _words(text: str, separator: str | None = None) -> tuple[str, ...]:
    return tuple(" ".join(word.split()) for word in text.split(separator))


FIRST_NAMES: tuple[str, ...] = _words(
    """
    Adaeze Agnieszka Aisha Alejandra Alfonso Amara Anders Anika Anneliese Anselm Arjun Astrid
    Aurelia Beatriz Benedikt Birgitta Bogdan Brigid Callum Camille Catalina Cedric Chidi Clemens
    Constance Dagmar Dalia Damian Darius Delphine Desmond Dmitri Dorothea Ebele Edith Eduardo
    Eilidh Eleni Emeka Enrique Esther Etienne Farida Fatima Fergus Fiona Francesca Gareth
    Genevieve Gerhard Giovanna Gwendolyn Hamid Hannah Haruki Heloise Henrik Hideko Ibrahim
    Ignacio Ingrid Isidora Ivana Jacinta Jamal Jasmina Javier Jelena Joaquin Jonas Josephine
    Kamala Karim Katarzyna Keiko Kwame Lakshmi Laszlo Leopold Lidia Ludmila Magnus Malik Manuela
    Margit Marisol Mateusz Mehmet Melisande Mikael Miriam Mohan Monique Nadia Naoko Natasha
    Nikolai Noor Octavia Olga Oluwaseun Osman Pablo Padma Petra Philippa Priyanka Rafael Rashid
    Rebekah Renata Rohan Rosalind Ruslan Samira Sanjay Sebastian Shirin Siobhan Stefan Sunita
    Svetlana Tadeusz Tamsin Tatiana Theodora Thibault Tomasz Ursula Valentina Vikram Wanjiru
    Wilhelm Xavier Yasmin Yusuf Zainab Zoltan
    """
)

LAST_NAMES: tuple[str, ...] = _words(
    """
    Abernathy Achterberg Adeyemi Agarwal Albrecht Almeida Andersson Antonelli Arslan Asante
    Bachmann Balogun Banerjee Baptiste Barbieri Bergstrom Bhattacharya Bianchi Blomqvist Boateng
    Bondarenko Borowski Brannigan Caballero Cardoso Castellano Cavanagh Chakraborty Chaudhary
    Chukwu Cisneros Claessens Coelho Dabrowski Dahlgren Delacroix Demir Desjardins Diallo
    Domingues Donnelly Dubois Eriksen Escobar Esposito Eze Fairweather Farrokhzad Fernandes
    Figueroa Fitzgerald Fonseca Fujimoto Gallagher Ganguly Garrido Gebhardt Gonzaga Grabowski
    Gundersen Haddad Halloran Hashemi Hayashi Heikkinen Hendrickx Herrera Hofstadter Holmgren
    Horvath Hussain Ibarra Ishikawa Ivanov Jankowski Janssens Jayawardena Jimenez Johansen Kamau
    Kapoor Karlsson Kaczmarek Kavanaugh Kimura Kirchner Kovacs Kowalczyk Kruger Kuznetsov
    Lefebvre Lindqvist Lombardi Lundgren Macpherson Mahmoud Mancini Marchetti Markovic Matsumoto
    Mbeki Mendoza Mensah Mikkelsen Moreau Moriarty Mukherjee Murakami Nakamura Narayanan Navarro
    Ndlovu Niemczyk Novak Nwosu Obradovic Ochieng Okafor Okonkwo Olsson Onyango Ortega Osei
    Ostrowski Oyelaran Pacheco Paquette Parthasarathy Pellegrini Pereira Petrenko Pfeiffer
    Popescu Quintero Rahmani Ramaswamy Rasmussen Reinhardt Ricci Rosenthal Rousseau Rutkowski
    Saarinen Salvatore Santoro Satpathy Schneider Sepulveda Shevchenko Sikorski Silveira
    Sorensen Stavrou Subramanian Szymanski Takahashi Tanaka Thorvaldsen Tkachenko Torvald
    Tremblay Uchida Ueda Valdivia Vandermeer Vasquez Venkatesan Verhoeven Villanueva Vlahos
    Wachowski Wanjala Weatherby Wolanski Yamashita Yilmaz Zabala Zamora Zielinski Zimmermann
    """
)

# Where people live and travel to; real places, so that a detector has a fair chance.
CITIES: tuple[str, ...] = _words(
    """
    Albuquerque, Amsterdam, Athens, Atlanta, Auckland, Baltimore, Bangalore, Barcelona, Berlin,
    Bogota, Boise, Boston, Brussels, Bucharest, Budapest, Buenos Aires, Cairo, Calgary, Cape
    Town, Chicago, Cincinnati, Cleveland, Copenhagen, Dakar, Dallas, Denver, Detroit, Dubai,
    Dublin, Edinburgh, Geneva, Glasgow, Guadalajara, Halifax, Hamburg, Helsinki, Honolulu,
    Houston, Istanbul, Jakarta, Kansas City, Kigali, Krakow, Kuala Lumpur, Lagos, Las Vegas,
    Lima, Lisbon, Ljubljana, London, Los Angeles, Madrid, Manila, Marseille, Melbourne, Memphis,
    Mexico City, Milwaukee, Minneapolis, Montevideo, Montreal, Mumbai, Munich, Nairobi, Naples,
    Nashville, New York, Oakland, Omaha, Osaka, Oslo, Ottawa, Philadelphia, Pittsburgh,
    Portland, Porto, Prague, Reykjavik, Riga, Rome, Rotterdam, Sacramento, Salt Lake City, San
    Diego, San Francisco, Santiago, Seattle, Seoul, Singapore, Sofia, Spokane, Stockholm,
    Tallinn, Tampa, Tokyo, Toronto, Tucson, Vancouver, Vienna, Vilnius, Warsaw, Winnipeg,
    Zagreb, Zurich
    """,
    separator=",",
)

EMPLOYERS: tuple[str, ...] = (
    "Northgate Analytics",
    "Brightwater Logistics",
    "Haldane Insurance",
    "Corvane Systems",
    "Tessaly Foods",
    "Quillmark Publishing",
    "Fennimore Health",
)

# Clients are a stem and a trade: far more than any one corpus draws.
CLIENT_STEMS: tuple[str, ...] = _words(
    """
    Aldermoor Ambervale Arkwright Ashgrove Belvane Birchall Blackthorne Bramwell Calderstone
    Carrowmore Cinderford Coldharbour Copperfield Cresswell Dovecote Drumlin Eastmere Elmhurst
    Everdale Fairhollow Falconridge Fernleigh Foxglove Glenhaven Goldcrest Greyfriars Halvorsen
    Harrowgate Hawksworth Heatherfield Hollybrook Ironbridge Jaspervale Kestrelmoor Kingsmead
    Larkspur Lochmere Longacre Marlowe Meadowbank Merriweather Millbrook Mossbank Netherfield
    Oakhampton Orchardleigh Osterley Pemberton Penhallow Ravenscroft Redfern Rookwood Rosewarne
    Sandiford Silverdale Stanmore Stonebridge Sycamore Thistledown Thornbury Umberslade
    Valebrook Wavertree Westerham Whitlock Willowmere Windermoor Wrenfield Wychbury Yarrowby
    """
)
CLIENT_TRADES: tuple[str, ...] = _words(
    """
    Aerospace Bakeries Biotech Breweries Capital Ceramics Chemicals Clinics Dental Electronics
    Energy Farms Fisheries Foundry Holdings Interiors Laboratories Marine Media Mills Mining
    Motors Museums Optics Packaging Paints Partners Pharmacy Properties Robotics Shipping Solar
    Textiles Theatres Timber Tools Toys Utilities Vineyards Watches
    """
)

# Short lists that everyone deals with: the middle of the frequency curve.
CARRIERS: tuple[str, ...] = (
    "Skylark Airways",
    "Meridian Rail",
    "Bluefin Air",
    "Transborder Coaches",
    "Polaris Airlines",
    "Gannet Ferries",
    "Cirrus Jet",
    "Overland Express",
)
HOTELS: tuple[str, ...] = (
    "Juniper Hotels",
    "Lanternhouse Inns",
    "Belmarsh Suites",
    "Cobalt Residences",
    "Driftwood Lodges",
    "Hotel Miravelle",
    "Stayfield Inns",
    "Parkside Regency",
    "Hotel Ombrelle",
)
VENDORS: tuple[str, ...] = (
    "Datawright",
    "Cloudpeak Hosting",
    "Papertrail Supplies",
    "Voxline Telecom",
    "Securon",
    "Inkwell Office",
    "Netloom",
    "Printora",
    "Vaultkeep",
    "Ledgerly",
    "Deskora",
)
AGENCIES: tuple[str, ...] = (
    "Talentbridge",
    "Hirewell Recruiting",
    "Keystaff",
    "Peoplefirst Search",
    "Vantage Staffing",
    "Careerloft",
    "Northstar Recruiting",
)

AREA_CODES: tuple[str, ...] = _words(
    """
    201 202 205 206 207 208 212 213 214 216 217 218 224 225 229 231 234 239 240 248 251 252 253
    254 256 260 262 267 269 270 301 302 303 304 305 307 308 309 310 312 313 314 315 316 317 318
    319 401 402 404 405 406 407 408 409 410 412 413 414 415 416 417 418 419 502 503 504 505 507
    508 509 510 512 513 514 515 516 517 518 519 601 602 603 604 605 606 607 608 609 612 613 614
    615 616 617 618
    """
)

MAILBOXES: tuple[str, ...] = ("mail.example.com", "post.example.org", "inbox.example.net")
